//! What must be equal on every rank: one rank differs, and every rank says the same of it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use linkme::distributed_slice;
use symmem_hal::types::{BackendKind, Bytes, DType, Layout, RankSet};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::stamps::{STAMPS, Stamp};
use symmem_mem::{
    Allocation, Choices, Completion, Determinism, Mismatch, Options, RendezvousError,
    SubgroupError, View,
};

use super::{bytes_view, meet_in};
use crate::runner::{Context, Test, TestError, Verdict, options};
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(bytes_differ).at_least(2),
    test!(dtypes_differ).at_least(2),
    test!(shapes_differ).at_least(2),
    test!(offsets_differ).at_least(2),
    test!(ordinals_differ).at_least(2),
    test!(several_things_differ).at_least(2),
    test!(every_rank_differs).at_least(2),
    test!(options_differ).at_least(2),
    test!(sections_differ).at_least(2),
    test!(sections_agree),
    test!(builds_differ).at_least(2),
    test!(layers_are_stamped),
];

/// What the last rank has, or what all others have.
fn odd<T>(context: &Context, odd: T, others: T) -> T {
    if context.rank() + 1 == context.size() { odd } else { others }
}

/// The verdict that every rank is to come to.
fn expected(context: &Context, field: &str, odd: &str, others: &str) -> Mismatch {
    let last = context.size() - 1;
    Mismatch {
        field: field.to_owned(),
        values: vec![
            (others.to_owned(), RankSet::first(last)),
            (odd.to_owned(), RankSet::one(last)),
        ],
    }
}

/// A rendezvous of `view` fails of this mismatch on every rank, leaves nothing, and is forgotten.
fn check_refused(context: &Context, view: &View, expected: &Mismatch) -> Verdict {
    let group = context.group()?;
    let before = Holdings::of_all_ranks(context)?;
    let since = Instant::now();
    let found = group.rendezvous(view, &group.wait());
    let error = check_err!(found, RendezvousError::Mismatch(_));
    context.told(&error, since);
    check_eq!(error.kind(), Kind::Disagreement);
    let RendezvousError::Mismatch(mismatch) = &error else {
        return Err(TestError::failed("not a mismatch"));
    };
    check_eq!(mismatch, expected);
    check_eq!(error.ranks(), expected.ranks());
    context.same("verdict", &error);
    before.check_no_more(context)?;
    // The group is none the worse, and no handle was kept.
    check!(group.symmetric(view).is_err(), "the view counts as symmetric");
    check_eq!(group.rendezvous(bytes_view(context, 10)?, &group.wait())?.ordinal(), 2);
    Ok(())
}

fn bytes_differ(context: &Context) -> Verdict {
    let view = bytes_view(context, odd(context, 4097, 4096))?;
    check_refused(context, &view, &expected(context, "the allocation's bytes", "4097", "4096"))
}

fn typed(context: &Context, offset: u64, dtype: DType, shape: &[u64]) -> Result<View, TestError> {
    let allocation = Allocation::new(context.device(), Bytes::new(4096))?;
    Ok(View::new(&allocation, Bytes::new(offset), dtype, Layout::contiguous(shape)?)?)
}

fn dtypes_differ(context: &Context) -> Verdict {
    let view = typed(context, 0, odd(context, DType::I32, DType::F32), &[10])?;
    check_refused(context, &view, &expected(context, "the dtype", "\"i32\"", "\"f32\""))
}

fn shapes_differ(context: &Context) -> Verdict {
    let view = typed(context, 0, DType::F32, odd(context, &[5, 2], &[2, 5]))?;
    check_refused(context, &view, &expected(context, "the shape", "[5, 2]", "[2, 5]"))
}

fn offsets_differ(context: &Context) -> Verdict {
    let view = typed(context, odd(context, 128, 0), DType::F32, &[10])?;
    check_refused(context, &view, &expected(context, "the offset", "128", "0"))
}

/// Two things at once: the first in the order of the record is named.
fn several_things_differ(context: &Context) -> Verdict {
    let (offset, dtype) = odd(context, (64, DType::U8), (0, DType::I8));
    let view = typed(context, offset, dtype, &[10])?;
    check_refused(context, &view, &expected(context, "the offset", "64", "0"))
}

fn every_rank_differs(context: &Context) -> Verdict {
    let bytes = |rank: usize| 1000 + rank as u64;
    let view = bytes_view(context, bytes(context.rank()))?;
    let values = (0..context.size()).map(|r| (bytes(r).to_string(), RankSet::one(r))).collect();
    let expected = Mismatch { field: "the allocation's bytes".to_owned(), values };
    check_refused(context, &view, &expected)
}

/// One rank has begun a rendezvous where the others split the group: each learns that the other
/// does something else, and from then on their ordinals differ.
fn ordinals_differ(context: &Context) -> Verdict {
    let group = context.group()?;
    let view = bytes_view(context, 100)?;
    let other = if context.rank() + 1 == context.size() {
        check_err!(group.rendezvous(&view, &group.wait()), RendezvousError::Unreadable { .. })
            .kind()
    } else {
        check_err!(meet_in(&group), TestError::Failed { .. });
        Kind::Disagreement
    };
    check_eq!(other, Kind::Disagreement);
    let before = Holdings::of_all_ranks(context)?;
    let found = group.rendezvous(&view, &group.wait());
    let error = check_err!(found, RendezvousError::Mismatch(_));
    let expected = expected(context, "the rendezvous ordinal", "2", "1");
    check_eq!(error.to_string(), RendezvousError::from(expected).to_string());
    before.check_no_more(context)
}

type Change = fn(&mut Options);

/// An option, and how the record names it and its two values.
const OPTIONS: &[(Change, &str, &str, &str)] = &[
    (|o| o.pad = Bytes::new(4608), "the pad size", "4608", "9216"),
    (|o| o.workspace = Bytes::mib(3), "the workspace budget", "3145728", "524288"),
    (|o| o.max_lanes = 2, "max_lanes", "2", "1"),
    (|o| o.max_blocks = 2, "MAX_BLOCKS", "2", "128"),
    (|o| o.deadline = Duration::from_millis(19_999), "the deadline (ms)", "19999", "20000"),
    (|o| o.checked = false, "checked mode", "false", "true"),
    (|o| o.first_epoch = 100, "the first epoch", "100", "0"),
    (|o| o.determinism = Determinism::Relaxed, "determinism", "Relaxed", "Bitwise"),
    (|o| o.completion = Completion::Group, "completion", "Group", "Local"),
    (
        |o| o.choices = Choices::Table("abc".into()),
        "the choice table (SYMMEM_TUNE)",
        // The first half of the first word of SHA-256's own example.
        "ba7816bf8f01cfea",
        "built in",
    ),
];

/// The creation of a group with these options fails of this mismatch on every rank.
fn check_no_group(context: &Context, options: &Options, expected: &Mismatch) -> Verdict {
    let world = context.world()?;
    let before = Holdings::of_all_ranks(context)?;
    let since = Instant::now();
    let made = world.subgroup(world.ranks()).options(options.clone()).create(&world.wait());
    let error =
        check_err!(made, SubgroupError::Rendezvous { cause: RendezvousError::Mismatch(_), .. });
    context.told(&error, since);
    check_eq!(error.kind(), Kind::Disagreement);
    let text = error.to_string();
    check!(text.ends_with(&expected.to_string()), "{text}, not {expected}");
    check_eq!(error.ranks(), expected.ranks());
    before.check_no_more(context)
}

fn options_differ(context: &Context) -> Verdict {
    let mut common = options(context.size());
    common.workspace = Bytes::kib(512);
    for (change, field, odd_value, value) in OPTIONS {
        context.step(field);
        let mut options = common.clone();
        if context.rank() + 1 == context.size() {
            change(&mut options);
        }
        check_no_group(context, &options, &expected(context, field, odd_value, value))?;
    }
    // Equal again, it is a group as ever.
    context.group_with(&common)?;
    Ok(())
}

fn section(key: &str, value: &str) -> (String, String, String) {
    ("suite".to_owned(), key.to_owned(), value.to_owned())
}

fn sections_differ(context: &Context) -> Verdict {
    let with = |sections: Vec<_>| Options { sections, ..options(context.size()) };
    context.step("another value");
    let options = with(vec![section("tables", odd(context, "other", "mine"))]);
    check_no_group(context, &options, &expected(context, "suite.tables", "other", "mine"))?;
    context.step("one less");
    let options = with(odd(context, vec![], vec![section("tables", "mine")]));
    check_no_group(context, &options, &expected(context, "suite.tables", "absent", "mine"))?;
    context.step("one more");
    let options = with(odd(context, vec![section("tables", "mine")], vec![]));
    check_no_group(context, &options, &expected(context, "suite.tables", "mine", "absent"))
}

fn sections_agree(context: &Context) -> Verdict {
    let sections = vec![section("tables", "mine"), section("kernels", "0123")];
    let options = Options { sections: sections.clone(), ..options(context.size()) };
    check_eq!(context.group_with(&options)?.options().sections, sections);
    Ok(())
}

thread_local! {
    static BUILD: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Of a layer of which each rank has the build that it says.
#[distributed_slice(STAMPS)]
static STAMP: Stamp = Stamp { name: "the suite", value: |_| BUILD.get().map(str::to_owned) };

/// What a rank does that has this build of the layer, or does not have it.
fn built<T>(build: Option<&'static str>, act: impl FnOnce() -> T) -> T {
    BUILD.set(build);
    let done = act();
    BUILD.set(None);
    done
}

fn builds_differ(context: &Context) -> Verdict {
    let (world, options) = (context.world()?, options(context.size()));
    let build = odd(context, "new", "old");
    let expected = expected(context, "the suite", "new", "old");
    let create = || world.subgroup(world.ranks()).options(options.clone()).create(&world.wait());
    context.step("when a group is made");
    let made = built(Some(build), create);
    let error =
        check_err!(made, SubgroupError::Rendezvous { cause: RendezvousError::Mismatch(_), .. });
    check!(error.to_string().ends_with(&expected.to_string()), "{error}, not {expected}");
    check_eq!(error.ranks(), expected.ranks());
    context.step("without the layer on a rank");
    let group = built(odd(context, None, Some("old")), create)?;
    context.step("at a rendezvous");
    let view = bytes_view(context, 10)?;
    let found = built(Some(build), || group.rendezvous(&view, &group.wait()));
    let error = check_err!(found, RendezvousError::Mismatch(_));
    check_eq!(error.to_string(), expected.to_string());
    group.rendezvous(&view, &group.wait())?;
    Ok(())
}

/// Whatever is above this layer has reached the record by way of the linker.
fn layers_are_stamped(_: &Context) -> Verdict {
    let on = |backend| {
        let stamped = |stamp: &&Stamp| (stamp.value)(backend).is_some();
        let mut names: Vec<_> = STAMPS.iter().filter(stamped).map(|stamp| stamp.name).collect();
        names.sort_unstable();
        names
    };
    let choices: &[&str] =
        if cfg!(feature = "collectives") { &["the built-in choice table"] } else { &[] };
    let kernels: &[&str] = match () {
        () if !cfg!(feature = "cuda") => &[],
        () if cfg!(feature = "moe") => &[
            "the kernels of symmem-collectives",
            "the kernels of symmem-moe",
            "the kernels of symmem-sync",
        ],
        () if cfg!(feature = "collectives") => {
            &["the kernels of symmem-collectives", "the kernels of symmem-sync"]
        }
        () if cfg!(feature = "sync") => &["the kernels of symmem-sync"],
        () => &[],
    };
    check_eq!(on(BackendKind::Host), choices);
    check_eq!(on(BackendKind::Stub), choices);
    check_eq!(on(BackendKind::Cuda), [choices, kernels].concat());
    Ok(())
}
