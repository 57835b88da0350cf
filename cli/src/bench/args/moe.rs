//! The command line of `symmem bench moe`.

use clap::ValueEnum;
use symmem::moe::Route;
use symmem::prelude::*;

use super::{ArgsError, Sizeable, named};
use crate::bench::check::Seed;
use crate::bench::operation::{Arrangement, Moe, Part, Setting};

/// What rows can be.
const TYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

/// Arguments of `symmem bench moe`.
#[derive(Debug, clap::Args)]
pub struct MoeArgs {
    #[command(flatten)]
    all: Sizeable,
    /// Tokens of each rank; each number is a size
    #[arg(long, value_name = "N[,N..]", value_delimiter = ',', default_value = "1,8,32,128,1024",
        value_parser = clap::value_parser!(u64).range(1..))]
    tokens: Vec<u64>,
    /// Elements of a token
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(1..))]
    hidden: u64,
    /// Experts of all ranks, dealt out in order and as evenly as it goes
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    experts: u32,
    /// Experts that each token chooses, all of them different
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..1025))]
    top_k: u32,
    /// How uneven choices are: of expert e as likely as (e + 1)^-SKEW; 0 for all alike
    #[arg(long, value_name = "SKEW", default_value_t = 0.0, value_parser = skew)]
    skew: f64,
    /// Type of a token's elements
    #[arg(long, default_value = "bf16", value_parser = named(TYPES, DType::name))]
    dtype: DType,
    /// Tokens are dispatched as f8e4m3, with a scale for every 128 elements
    #[arg(long)]
    quantised: bool,
    /// How the rows that a rank receives lie, and by which calls they travel
    #[arg(long, value_enum, default_value_t = LayoutName::Compact)]
    layout: LayoutName,
    /// Rows that each expert's begin at a multiple of, of the layouts compact and vdev; 0 for none
    #[arg(long, value_name = "ROWS", default_value_t = 0)]
    align: u64,
    /// How rows come to their ranks
    #[arg(long, value_enum, default_value_t = RouteName::Auto)]
    route: RouteName,
    /// What to measure
    #[arg(long, value_name = "PART[,PART..]", value_delimiter = ',', default_value = "dispatch,combine,round",
        value_parser = named(Part::ALL, Part::name))]
    parts: Vec<Part>,
}

/// How received rows lie, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    /// By expert, one after the other
    Compact,
    /// By expert, with as much room for each as the one with the most rows needs
    Padded,
    /// By rank, one row for each token of a rank, which sums its experts' rows itself
    RankMajor,
    /// As compact, by the pair all_to_all_vdev_2d and all_to_all_vdev_2d_offset, of rows that the
    /// caller has put in the order of experts: a row for each choice travels
    Vdev,
}

/// A way, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RouteName {
    /// What is faster, by a table
    Auto,
    /// Each token to the ranks that it goes to
    Direct,
    /// All tokens are shown to all ranks: on CPUs
    Gathered,
}

impl MoeArgs {
    pub fn all(&self) -> &Sizeable {
        &self.all
    }

    /// The operation, if it makes sense.
    pub fn moe(&self) -> Result<Moe, ArgsError> {
        let all = &self.all;
        all.check_plot()?;
        let arrangement = match self.layout {
            LayoutName::Compact => Arrangement::Compact { align: self.align },
            LayoutName::Padded => Arrangement::Padded,
            LayoutName::RankMajor => Arrangement::RankMajor,
            LayoutName::Vdev => Arrangement::Vdev { align: self.align },
        };
        let setting = Setting {
            ranks: all.common.ranks,
            hidden: self.hidden,
            experts: self.experts as usize,
            top_k: self.top_k as usize,
            skew: self.skew,
            dtype: self.dtype,
            quantised: self.quantised,
            arrangement,
            route: match self.route {
                RouteName::Auto => Route::Auto,
                RouteName::Direct => Route::Direct,
                RouteName::Gathered => Route::Gathered,
            },
            seed: Seed::new(all.seed),
        };
        let mut moe = Moe::new(setting, self.align, &self.tokens, &self.parts)?;
        moe.graph = all.capture.graph;
        moe.limit = !all.no_limit;
        moe.check = !all.no_check;
        moe.pace = all.common.pace();
        Ok(moe)
    }
}

/// An exponent.
fn skew(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(skew) if (0.0..=16.0).contains(&skew) => Ok(skew),
        _ => Err(format!("expected a number from 0 to 16, found {text:?}")),
    }
}
