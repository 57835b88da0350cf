//! A feed-forward block as experts on several ranks: the part to copy.

use std::cell::RefCell;
use std::ops::Range;

use candle_core::{Device, Error, Result, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use minilm::{Config, columns, share};
use symmem::mem::Tensor as SharedTensor;
use symmem::prelude::{Group, Moe, Routing, RoutingOptions, SymmetricMemory};

use crate::router::Router;
use crate::statistics::Load;

/// Some neurons of a feed-forward block: rows of W1 and elements of b1, columns of W2.
///
/// The block's output is the sum over its neurons, and b2. So whatever groups they are cut into, the plain
/// sum of the groups, all weights 1, is the block.
struct Expert {
    up: Linear,
    down: Linear,
}

impl Expert {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.gelu_erf()?)
    }
}

/// A feed-forward block: the router and b2, which every rank has, and this rank's experts.
pub struct Block {
    router: Router,
    experts: Vec<Expert>,
    b2: Tensor,
}

impl Block {
    /// Cuts a layer's block into `experts` experts, as equal as can be, of which this rank keeps `mine`.
    pub fn load(
        config: &Config,
        weights: &VarBuilder,
        experts: usize,
        mine: Range<usize>,
    ) -> Result<Self> {
        let (hidden, neurons) = (config.hidden_size, config.intermediate_size);
        let (up, down) = (weights.pp("intermediate.dense"), weights.pp("output.dense"));
        let (w1, b1) = (up.get((neurons, hidden), "weight")?, up.get(neurons, "bias")?);
        let (w2, b2) = (down.get((hidden, neurons), "weight")?, down.get(hidden, "bias")?);
        let cut: Vec<_> = (0..experts).map(|expert| share(neurons, expert, experts)).collect();
        let expert = |of: &Range<usize>| {
            // A copy, as `columns` has, so that the other experts' need not stay in memory.
            let w2 = w2.narrow(1, of.start, of.len())?.force_contiguous()?;
            let up = columns((hidden, neurons), of, up.clone())?;
            Ok(Expert { up, down: Linear::new(w2, None) })
        };
        let experts = cut[mine].iter().map(expert).collect::<Result<_>>()?;
        Ok(Block { router: Router::of(&cut, &w1, &b1)?, experts, b2 })
    }
}

/// Symmetric memory for the rows of one layer at a time, and the routing that all layers share.
pub struct Exchange {
    routing: Routing,
    experts: usize,
    choices: usize,
    hidden: usize,
    x: SharedTensor<f32>,
    indices: SharedTensor<i32>,
    rows: SharedTensor<f32>,
    output: SharedTensor<f32>,
    _mapped: SymmetricMemory,
}

impl Exchange {
    /// For `tokens` of this rank, of which no rank has more than `most`. Collective.
    pub fn new(
        group: &Group,
        (experts, choices): (usize, usize),
        (tokens, most): (usize, usize),
        hidden: usize,
    ) -> anyhow::Result<Self> {
        let (device, wait) = (group.device(), group.wait());
        let options = RoutingOptions::new(experts, choices, most as u64);
        let routing = group.routing(&options, &wait)?;
        let matrix = |rows: u64| SharedTensor::zeros(device, &[rows, hidden as u64]);
        let rows = matrix(routing.capacity())?;
        Ok(Exchange {
            experts,
            choices,
            hidden,
            x: matrix(tokens as u64)?,
            indices: SharedTensor::zeros(device, &[tokens as u64, choices as u64])?,
            output: matrix(tokens as u64)?,
            _mapped: group.rendezvous(&rows, &wait)?,
            rows,
            routing,
        })
    }

    /// The sum of the chosen experts for each token of `x`, and what that moved.
    fn forward(&self, x: &[f32], block: &Block) -> anyhow::Result<(Vec<f32>, Load)> {
        let chosen = block.router.choose(x, self.choices);
        self.x.write(x)?;
        self.indices.write(&chosen)?;
        self.routing.dispatch(&self.x, &self.indices, &self.rows).run()?;

        // Of each expert here: how many rows came, and where they begin.
        let groups = self.routing.groups().to_vec()?;
        let (counts, starts) = groups.split_at(groups.len() / 2);
        for ((expert, &count), &start) in block.experts.iter().zip(counts).zip(starts) {
            self.run(expert, start as u64, count as u64)?;
        }
        self.routing.combine(&self.rows, &self.output).run()?;

        let received = counts[..block.experts.len()].iter().map(|&count| count as u64).collect();
        let load = Load::new(self.routing.group(), self.experts, self.choices, &chosen, received);
        Ok((self.output.to_vec()?, load))
    }

    /// An expert over its rows, in place.
    fn run(&self, expert: &Expert, start: u64, count: u64) -> anyhow::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let hidden = self.hidden as u64;
        let rows = self.rows.slice(start * hidden, count * hidden)?;
        let x = Tensor::from_vec(rows.to_vec()?, (count as usize, self.hidden), &Device::Cpu)?;
        let y = expert.forward(&x)?;
        Ok(rows.write(&y.flatten_all()?.to_vec1()?)?)
    }
}

/// A [`Block`] in a layer of the encoder.
pub struct Routed<'a> {
    pub block: &'a Block,
    pub exchange: &'a Exchange,
    /// What each layer moved, in turn.
    pub loads: &'a RefCell<Vec<Load>>,
}

impl Module for Routed<'_> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let tokens = x.flatten_all()?.to_vec1::<f32>()?;
        let (sum, load) =
            self.exchange.forward(&tokens, self.block).map_err(|e| Error::msg(format!("{e:#}")))?;
        self.loads.borrow_mut().push(load);
        // b2 comes after the sum, else it would be in it once an expert.
        Tensor::from_vec(sum, x.shape(), x.device())?.broadcast_add(&self.block.b2)
    }
}
