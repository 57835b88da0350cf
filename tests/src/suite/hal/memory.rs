//! Device memory: what every backend's must do.

use symmem_hal::shm::SegmentError;
use symmem_hal::types::Bytes;
use symmem_hal::{AccessError, AllocError, Fault as _, Kind, RangeError};

use crate::runner::{Context, Test, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(fresh_memory_is_zero).local(),
    test!(an_exported_memory_is_the_same_memory).local(),
    test!(zero_bytes_are_memory_too).local(),
    test!(too_much_says_how_much_there_is).local(),
    test!(ranges_end_where_the_memory_ends).local(),
    test!(copies_of_any_alignment_touch_nothing_else).local(),
];

fn fresh_memory_is_zero(context: &Context) -> Verdict {
    for bytes in [1, 4095, 4096, 4097, 1 << 20] {
        let memory = context.device().allocate(Bytes::new(bytes))?;
        check_eq!(memory.bytes(), Bytes::new(bytes));
        let mut all = vec![0xff; usize::try_from(bytes)?];
        memory.read(Bytes::ZERO, &mut all)?;
        check!(all.iter().all(|b| *b == 0), "{bytes} fresh bytes are not all zero");
    }
    Ok(())
}

fn an_exported_memory_is_the_same_memory(context: &Context) -> Verdict {
    let mine = context.device().allocate(Bytes::kib(8))?;
    let peers = context.device().import(mine.export()?, Bytes::kib(8))?;
    check!(mine.base() != peers.base(), "two mappings have one address");
    mine.write(Bytes::new(5000), b"here")?;
    let mut seen = [0; 4];
    peers.read(Bytes::new(5000), &mut seen)?;
    check_eq!(&seen, b"here");
    peers.write(Bytes::new(1), b"back")?;
    mine.read(Bytes::new(1), &mut seen)?;
    check_eq!(&seen, b"back");
    let error = check_err!(peers.export(), symmem_hal::ExportError::NotOwner);
    check_eq!(error.kind(), Kind::InvalidArgument);
    Ok(())
}

fn zero_bytes_are_memory_too(context: &Context) -> Verdict {
    let memory = context.device().allocate(Bytes::ZERO)?;
    check_eq!(memory.bytes(), Bytes::ZERO);
    check!(!memory.base().is_null(), "it has no address");
    let peers = context.device().import(memory.export()?, Bytes::ZERO)?;
    peers.read(Bytes::ZERO, &mut [])?;
    check_err!(memory.write(Bytes::ZERO, &[1]), AccessError::Range(_));
    Ok(())
}

fn too_much_says_how_much_there_is(context: &Context) -> Verdict {
    let needed = Bytes::new(1 << 60);
    let error = check_err!(context.device().allocate(needed), _);
    check_eq!(error.kind(), Kind::Exhausted);
    // Of the system's memory, and of a device's own.
    let (said, available, source) = match &error {
        AllocError::Segment(SegmentError::Limit { needed, limit }) => {
            (*needed, limit.available, limit.source.to_string())
        }
        AllocError::Exhausted { needed, available, device, .. } => {
            (*needed, *available, device.clone())
        }
        _ => return Err(crate::runner::TestError::failed(format!("not a limit: {error}"))),
    };
    check_eq!(said, needed);
    check!(available < needed, "{available} are said to be available");
    let text = error.to_string();
    for part in [needed.to_string(), available.to_string(), source] {
        check!(text.contains(&part), "{text:?} does not say {part:?}");
    }
    Ok(())
}

fn ranges_end_where_the_memory_ends(context: &Context) -> Verdict {
    let memory = context.device().allocate(Bytes::new(100))?;
    memory.write(Bytes::new(96), &[1; 4])?;
    memory.write(Bytes::new(100), &[])?;
    for (offset, length) in [(97, 4), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX - 3, 8)] {
        let expected = AccessError::Range(RangeError {
            offset: Bytes::new(offset),
            length: Bytes::from(length),
            size: Bytes::new(100),
        });
        let found =
            check_err!(memory.write(Bytes::new(offset), &vec![9; length]), AccessError::Range(_));
        check_eq!(found, expected, "write of {length} at {offset}");
        let mut out = vec![7; length];
        let found = check_err!(memory.read(Bytes::new(offset), &mut out), AccessError::Range(_));
        check_eq!(found, expected, "read of {length} at {offset}");
        check!(out.iter().all(|b| *b == 7), "a refused read of {length} at {offset} wrote");
    }
    let mut all = [0; 100];
    memory.read(Bytes::ZERO, &mut all)?;
    check_eq!(all.iter().map(|b| u32::from(*b)).sum::<u32>(), 4, "a refused write wrote");
    Ok(())
}

fn copies_of_any_alignment_touch_nothing_else(context: &Context) -> Verdict {
    let memory = context.device().allocate(Bytes::new(64))?;
    for offset in 0..20usize {
        for length in 0..25usize {
            memory.write(Bytes::ZERO, &[0xee; 64])?;
            let data: Vec<u8> = (1..).take(length).collect();
            memory.write(Bytes::from(offset), &data)?;
            let mut expected = [0xee; 64];
            expected[offset..offset + length].copy_from_slice(&data);
            let mut all = [0; 64];
            memory.read(Bytes::ZERO, &mut all)?;
            check_eq!(all, expected, "{length} at {offset}");
        }
    }
    Ok(())
}
