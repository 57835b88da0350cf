//! Put, get and fills: what arrives where, and what is refused.

use symmem_hal::types::{Bytes, DType, Element, Layout, bf16};
use symmem_hal::{Device, Fault as _, Kind, Stream, StreamMode};
use symmem_mem::{
    Allocation, FillError, Group, MemoryPool, PeerError, RankError, SymmetricMemory, Tensor,
    TransferError, View, ViewError,
};

use super::{bytes_view, meet_in};
use crate::runner::{Context, PATIENT, Test, TestError, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(a_put_arrives_where_it_is_sent),
    test!(a_get_fetches_what_is_there),
    test!(elements_of_every_size),
    test!(any_alignment_of_bytes),
    test!(to_and_from_oneself),
    test!(no_elements_are_a_transfer_too),
    test!(offsets_count_from_the_handles_view),
    test!(into_a_pools_block),
    test!(a_worker_keeps_the_order),
    test!(arguments_are_held_until_the_end),
    test!(a_graph_transfers_again_at_each_replay),
    test!(ranges_of_peers_are_checked),
    test!(bad_views_and_streams_are_refused),
    test!(a_group_that_was_left_refuses),
    test!(one_word_is_written),
    test!(words_are_filled),
    test!(a_peers_words_are_filled),
    test!(bad_fills_are_refused),
];

/// A value of each rank and place that nobody else has.
fn value(rank: usize, index: u64) -> u32 {
    (rank as u32 + 1) << 20 | index as u32
}

fn values(rank: usize, range: std::ops::Range<u64>) -> Vec<u32> {
    range.map(|index| value(rank, index)).collect()
}

fn symmetric(
    context: &Context,
    group: &Group,
    count: u64,
) -> Result<(Tensor<u32>, SymmetricMemory), TestError> {
    let tensor = Tensor::<u32>::zeros(context.device(), &[count])?;
    let handle = group.rendezvous(&tensor, &group.wait())?;
    Ok((tensor, handle))
}

fn before(context: &Context) -> usize {
    (context.rank() + context.size() - 1) % context.size()
}

fn a_put_arrives_where_it_is_sent(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = symmetric(context, &group, 1024)?;
    let next = context.neighbour(&group, 1)?;
    for (offset, count) in [(0, 1024), (0, 1), (1023, 1), (100, 200), (7, 1000)] {
        context.step(format_args!("{count} elements at {offset}"));
        tensor.write(&[0; 1024])?;
        let source = Tensor::<u32>::zeros(context.device(), &[count])?;
        source.write(&values(context.rank(), 0..count))?;
        meet_in(&group)?;
        handle.put(&source, next).offset(offset).run()?;
        meet_in(&group)?;
        let mut expected = vec![0; 1024];
        expected[offset as usize..(offset + count) as usize]
            .copy_from_slice(&values(before(context), 0..count));
        check_eq!(tensor.to_vec()?, expected, "{count} elements at {offset}");
        check_eq!(source.to_vec()?, values(context.rank(), 0..count), "the source");
        meet_in(&group)?;
    }
    Ok(())
}

fn a_get_fetches_what_is_there(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = symmetric(context, &group, 1024)?;
    tensor.write(&values(context.rank(), 0..1024))?;
    meet_in(&group)?;
    for peer in group.ranks() {
        for (offset, count) in [(0, 1024), (0, 1), (1023, 1), (100, 200)] {
            // Into a part of a larger tensor: nothing beside it is touched.
            let around = Tensor::<u32>::zeros(context.device(), &[count + 2])?;
            handle.get(&*around.slice(1, count)?, peer).offset(offset).run()?;
            let mut expected = vec![0];
            expected.extend(values(peer.index(), offset..offset + count));
            expected.push(0);
            check_eq!(around.to_vec()?, expected, "{count} elements at {offset} of rank {peer}");
        }
    }
    check_eq!(tensor.to_vec()?, values(context.rank(), 0..1024), "a get has written");
    meet_in(&group)
}

fn of_type<T: Element>(context: &Context, group: &Group, data: &[T]) -> Verdict {
    let count = data.len() as u64;
    let target = Tensor::<T>::zeros(context.device(), &[count + 3])?;
    let handle = group.rendezvous(&target, &group.wait())?;
    let source = Tensor::<T>::zeros(context.device(), &[count])?;
    source.write(data)?;
    meet_in(group)?;
    handle.put(&source, context.neighbour(group, 1)?).offset(2).run()?;
    meet_in(group)?;
    let zero = T::zeroed();
    let mut expected = vec![zero; 2];
    expected.extend_from_slice(data);
    expected.push(zero);
    check_eq!(target.to_vec()?, expected, "{}", T::DTYPE);
    let back = Tensor::<T>::zeros(context.device(), &[count])?;
    handle.get(&back, context.neighbour(group, 2)?).offset(2).run()?;
    check_eq!(back.to_vec()?, data, "{}", T::DTYPE);
    meet_in(group)
}

fn elements_of_every_size(context: &Context) -> Verdict {
    let group = context.group()?;
    of_type::<u8>(context, &group, &(1..=101).collect::<Vec<u8>>())?;
    of_type::<bf16>(
        context,
        &group,
        &(1..=101).map(|x| bf16::from_f32(x as f32)).collect::<Vec<_>>(),
    )?;
    of_type::<f32>(context, &group, &(1..=101).map(|x| x as f32 / 3.0).collect::<Vec<_>>())?;
    of_type::<f64>(context, &group, &(1..=101).map(|x| f64::from(x) / 3.0).collect::<Vec<_>>())
}

/// Sources and targets at all distances from alignment: the bytes arrive, and no others change.
fn any_alignment_of_bytes(context: &Context) -> Verdict {
    let group = context.group()?;
    let target = Tensor::<u8>::zeros(context.device(), &[100])?;
    let handle = group.rendezvous(&target, &group.wait())?;
    let source = Tensor::<u8>::zeros(context.device(), &[100])?;
    let data: Vec<u8> = (0..100).map(|i| i as u8 + 1).collect();
    source.write(&data)?;
    let me = group.rank();
    for (from, to) in (0..9u64).flat_map(|from| (0..9u64).map(move |to| (from, to))) {
        for count in [0, 1, 7, 8, 9, 31, 64] {
            target.write(&[0xee; 100])?;
            handle.put(&*source.slice(from, count)?, me).offset(to).run()?;
            let mut expected = vec![0xee; 100];
            expected[to as usize..(to + count) as usize]
                .copy_from_slice(&data[from as usize..(from + count) as usize]);
            check_eq!(target.to_vec()?, expected, "{count} from {from} to {to}");
        }
    }
    context.meet()
}

fn to_and_from_oneself(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = symmetric(context, &group, 100)?;
    let me = group.rank();
    tensor.write(&values(3, 0..100))?;
    // Onto itself, and to another part of the same memory.
    handle.put(&tensor, me).run()?;
    check_eq!(tensor.to_vec()?, values(3, 0..100));
    handle.put(&*tensor.slice(0, 50)?, me).offset(50).run()?;
    check_eq!(tensor.slice(50, 50)?.to_vec()?, values(3, 0..50));
    for (start, offset) in [(0, 1), (1, 0), (10, 49)] {
        let part = tensor.slice(start, 50)?;
        let error = check_err!(handle.put(&part, me).offset(offset).run(), TransferError::Overlap);
        check_eq!(error.kind(), Kind::InvalidArgument);
        check_err!(handle.get(&part, me).offset(offset).run(), TransferError::Overlap);
    }
    check_eq!(tensor.slice(50, 50)?.to_vec()?, values(3, 0..50), "a refused put has written");
    context.meet()
}

fn no_elements_are_a_transfer_too(context: &Context) -> Verdict {
    let group = context.group()?;
    let handle = group.rendezvous(bytes_view(context, 0)?, &group.wait())?;
    let (tensor, full) = symmetric(context, &group, 10)?;
    let nothing = bytes_view(context, 0)?;
    let next = context.neighbour(&group, 1)?;
    handle.put(&nothing, next).run()?;
    handle.get(&nothing, next).run()?;
    full.put(&nothing, next).offset(40).run()?;
    check_err!(full.put(&nothing, next).offset(41).run(), TransferError::Peer(_));
    let words = Tensor::<u32>::zeros(context.device(), &[1])?;
    for offset in [u64::MAX / 4 + 1, u64::MAX] {
        let error = check_err!(full.put(&words, next).offset(offset).run(), TransferError::Peer(_));
        let expected = format!("offset of {offset} elements of u32 is past any memory");
        check!(error.to_string().contains(&expected), "{error}");
    }
    meet_in(&group)?;
    check_eq!(tensor.to_vec()?, [0; 10]);
    Ok(())
}

fn offsets_count_from_the_handles_view(context: &Context) -> Verdict {
    let group = context.group()?;
    let tensor = Tensor::<u32>::zeros(context.device(), &[100])?;
    let handle = group.rendezvous(tensor.slice(40, 10)?, &group.wait())?;
    let source = Tensor::<u32>::zeros(context.device(), &[5])?;
    source.write(&values(context.rank(), 0..5))?;
    meet_in(&group)?;
    // To the end of the allocation, not only of the view.
    handle.put(&source, context.neighbour(&group, 1)?).offset(55).run()?;
    handle.put(&source, context.neighbour(&group, 1)?).run()?;
    meet_in(&group)?;
    let mut expected = vec![0; 100];
    expected[95..].copy_from_slice(&values(before(context), 0..5));
    expected[40..45].copy_from_slice(&values(before(context), 0..5));
    check_eq!(tensor.to_vec()?, expected);
    let error =
        check_err!(handle.put(&source, group.rank()).offset(56).run(), TransferError::Peer(_));
    check!(error.to_string().contains("400 B"), "{error}");
    context.meet()
}

fn into_a_pools_block(context: &Context) -> Verdict {
    let group = context.group()?;
    let pool = MemoryPool::with_segments(context.device(), Bytes::kib(64));
    let blocks = [pool.empty::<u32>(&[64])?, pool.empty(&[64])?, pool.empty(&[64])?];
    for block in &blocks {
        block.write(&[7; 64])?;
    }
    let handle = group.rendezvous(&blocks[1], &group.wait())?;
    let source = pool.empty::<u32>(&[64])?;
    source.write(&values(context.rank(), 0..64))?;
    meet_in(&group)?;
    let next = context.neighbour(&group, 1)?;
    handle.put(&source, next).run()?;
    meet_in(&group)?;
    check_eq!(blocks[1].to_vec()?, values(before(context), 0..64));
    check_eq!(blocks[0].to_vec()?, [7; 64]);
    check_eq!(blocks[2].to_vec()?, [7; 64]);
    // The neighbouring blocks are out of reach.
    let error = check_err!(handle.put(&source, next).offset(1).run(), TransferError::Peer(_));
    check_eq!(error.ranks(), symmem_hal::types::RankSet::one(next.index()));
    context.meet()
}

/// Later puts on a stream overwrite earlier ones, and gets see what puts before them stored.
fn a_worker_keeps_the_order(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = context.device().stream(StreamMode::Worker)?;
    let (tensor, handle) = symmetric(context, &group, 5000)?;
    let next = context.neighbour(&group, 1)?;
    let back = Tensor::<u32>::zeros(context.device(), &[5000])?;
    let sources = (0..10)
        .map(|round| {
            let source = Tensor::<u32>::zeros(context.device(), &[5000])?;
            source.write(&vec![value(context.rank(), round); 5000])?;
            Ok(source)
        })
        .collect::<Result<Vec<_>, TestError>>()?;
    meet_in(&group)?;
    for source in &sources {
        handle.put(source, next).on(&stream)?;
    }
    handle.get(&back, next).on(&stream)?;
    stream.synchronize(&PATIENT)?;
    check_eq!(back.to_vec()?, vec![value(context.rank(), 9); 5000]);
    meet_in(&group)?;
    check_eq!(tensor.to_vec()?, vec![value(before(context), 9); 5000]);
    Ok(())
}

/// Everything a put or get was given is dropped, or forgotten, right after it is enqueued.
fn arguments_are_held_until_the_end(context: &Context) -> Verdict {
    let group = context.group()?;
    let stream = context.device().stream(StreamMode::Worker)?;
    let (tensor, handle) = symmetric(context, &group, 100_000)?;
    let (other, second) = symmetric(context, &group, 100_000)?;
    other.write(&vec![value(context.rank(), 1); 100_000])?;
    meet_in(&group)?;
    let next = context.neighbour(&group, 1)?;
    let kept = Tensor::<u32>::zeros(context.device(), &[100_000])?;
    {
        let source = Tensor::<u32>::zeros(context.device(), &[100_000])?;
        source.write(&vec![value(context.rank(), 0); 100_000])?;
        handle.put(&source, next).on(&stream)?;
        let target = kept.clone();
        second.get(&target, next).on(&stream)?;
        core::mem::forget(target);
    }
    drop((other, second));
    let end = stream.clone();
    drop(stream);
    end.synchronize(&PATIENT)?;
    check_eq!(kept.to_vec()?, vec![value(next.index(), 1); 100_000]);
    meet_in(&group)?;
    check_eq!(tensor.to_vec()?, vec![value(before(context), 0); 100_000]);
    Ok(())
}

fn a_graph_transfers_again_at_each_replay(context: &Context) -> Verdict {
    let group = context.group()?;
    let next = context.neighbour(&group, 1)?;
    let mut streams = vec![context.device().stream(StreamMode::Worker)?];
    // Not every backend runs launches on the caller.
    streams.extend(context.device().stream(StreamMode::Inline).ok());
    for stream in streams {
        let (tensor, handle) = symmetric(context, &group, 256)?;
        let source = Tensor::<u32>::zeros(context.device(), &[128])?;
        let back = Tensor::<u32>::zeros(context.device(), &[128])?;
        stream.begin_capture()?;
        handle.put(&source, next).on(&stream)?;
        handle.get(&back, next).on(&stream)?;
        let flags = handle.remote(next)?;
        flags.memset32(200, 7, 10).on(&stream)?;
        flags.write_value32(255, 9).on(&stream)?;
        let graph = stream.end_capture()?;
        // The graph holds what it uses; nothing has happened yet.
        drop((handle, flags));
        meet_in(&group)?;
        check_eq!(tensor.to_vec()?, [0; 256]);
        for round in 0..4 {
            source.write(&[value(context.rank(), round); 128])?;
            tensor.slice(128, 128)?.write(&[0; 128])?;
            meet_in(&group)?;
            graph.launch(&stream, &PATIENT)?;
            stream.synchronize(&PATIENT)?;
            check_eq!(back.to_vec()?, [value(context.rank(), round); 128], "round {round}");
            meet_in(&group)?;
            let mut expected = vec![value(before(context), round); 128];
            expected.extend([0; 128]);
            expected[200..210].fill(7);
            expected[255] = 9;
            check_eq!(tensor.to_vec()?, expected, "round {round}");
            meet_in(&group)?;
        }
    }
    Ok(())
}

fn ranges_of_peers_are_checked(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = symmetric(context, &group, 100)?;
    let local = Tensor::<u32>::zeros(context.device(), &[100])?;
    local.write(&[9; 100])?;
    let long = Tensor::<u32>::zeros(context.device(), &[101])?;
    let double = Tensor::<f64>::zeros(context.device(), &[2])?;
    for peer in group.ranks() {
        for transfer in [
            handle.put(&local, peer).offset(1),
            handle.get(&local, peer).offset(1),
            handle.put(&local, peer).offset(u64::MAX),
            handle.get(&local, peer).offset(u64::MAX / 4 + 1),
            handle.put(&long, peer),
            handle.get(&long, peer),
            handle.put(&double, peer).offset(49),
        ] {
            let error = check_err!(transfer.run(), TransferError::Peer(_));
            check_eq!(error.kind(), Kind::InvalidArgument);
            check_eq!(error.ranks(), symmem_hal::types::RankSet::one(peer.index()));
            check!(error.to_string().starts_with(&format!("rank {peer}: ")), "{error}");
        }
    }
    let stranger = context.group()?.rank_at(0)?;
    let error = check_err!(handle.put(&local, stranger).run(), TransferError::Peer(_));
    check!(
        matches!(error, TransferError::Peer(PeerError::Rank(RankError::OtherGroup { .. }))),
        "{error}"
    );
    // An element that the view's offset does not suit.
    let odd = group.rendezvous(tensor.slice(1, 3)?, &group.wait())?;
    let error = check_err!(odd.put(&double, group.rank()).run(), TransferError::Peer(_));
    check!(
        matches!(
            error,
            TransferError::Peer(PeerError::View { cause: ViewError::Misaligned { .. }, .. })
        ),
        "{error}"
    );
    meet_in(&group)?;
    check_eq!(tensor.to_vec()?, [0; 100], "a refused put has written");
    check_eq!(local.to_vec()?, [9; 100], "a refused get has written");
    Ok(())
}

fn elsewhere(context: &Context) -> Result<(Tensor<u32>, Stream), TestError> {
    let device = match context.device() {
        Device::Host(_) => Device::stub(77),
        _ => Device::host(),
    };
    Ok((Tensor::zeros(&device, &[4])?, device.default_stream()?))
}

fn bad_views_and_streams_are_refused(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = symmetric(context, &group, 100)?;
    let allocation = Allocation::new(context.device(), Bytes::new(400))?;
    let gaps = View::new(&allocation, Bytes::ZERO, DType::U32, Layout::strided(&[4, 2], &[3, 1])?)?;
    check_err!(handle.put(&gaps, group.rank()).run(), TransferError::View(_));
    check_err!(handle.get(&gaps, group.rank()).run(), TransferError::View(_));
    let (other, stream) = elsewhere(context)?;
    let found = handle.put(&other, group.rank()).run();
    let error = check_err!(found, TransferError::Backend { what: "view", .. });
    check_eq!(error.kind(), Kind::InvalidArgument);
    let local = Tensor::<u32>::zeros(context.device(), &[4])?;
    let found = handle.get(&local, group.rank()).on(&stream);
    check_err!(found, TransferError::Backend { what: "stream", .. });
    check_eq!(tensor.to_vec()?, [0; 100]);
    context.meet()
}

fn a_group_that_was_left_refuses(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = symmetric(context, &group, 10)?;
    meet_in(&group)?;
    group.leave();
    group.leave();
    let error = check_err!(handle.put(&tensor, group.rank()).run(), TransferError::Failed(_));
    check_eq!(error.kind(), Kind::Stale);
    context.meet()
}

fn words(context: &Context, count: u64) -> Result<(Tensor<u32>, Stream), TestError> {
    let tensor = Tensor::<u32>::zeros(context.device(), &[count])?;
    Ok((tensor, context.device().default_stream()?))
}

fn one_word_is_written(context: &Context) -> Verdict {
    let (tensor, stream) = words(context, 4)?;
    for (offset, value) in [(0, 4), (1, u32::MAX), (3, 0x8000_0000), (3, 0)] {
        let mut expected = tensor.to_vec()?;
        expected[offset as usize] = value;
        tensor.write_value32(offset, value).on(&stream)?;
        stream.synchronize(&PATIENT)?;
        check_eq!(tensor.to_vec()?, expected);
    }
    Ok(())
}

fn words_are_filled(context: &Context) -> Verdict {
    let (tensor, stream) = words(context, 16)?;
    for (offset, value, count) in [(0, 1, 16), (0, 2, 1), (15, 3, 1), (4, 4, 7)] {
        let mut expected = tensor.to_vec()?;
        expected[offset as usize..(offset + count) as usize].fill(value);
        tensor.memset32(offset, value, count).on(&stream)?;
        stream.synchronize(&PATIENT)?;
        check_eq!(tensor.to_vec()?, expected);
    }
    // Dropped at once.
    let kept = tensor.clone();
    tensor.slice(2, 3)?.memset32(0, 77, 3).on(&stream)?;
    drop(tensor);
    stream.synchronize(&PATIENT)?;
    check_eq!(kept.slice(1, 5)?.to_vec()?, [2, 77, 77, 77, 4].map(|v| if v == 2 { 1 } else { v }));
    Ok(())
}

fn a_peers_words_are_filled(context: &Context) -> Verdict {
    let group = context.group()?;
    let (tensor, handle) = symmetric(context, &group, 8)?;
    let stream = context.device().default_stream()?;
    let theirs = handle.remote(context.neighbour(&group, 1)?)?;
    theirs.memset32(2, value(context.rank(), 0), 3).on(&stream)?;
    theirs.write_value32(7, value(context.rank(), 1)).on(&stream)?;
    stream.synchronize(&PATIENT)?;
    meet_in(&group)?;
    let (word, last) = (value(before(context), 0), value(before(context), 1));
    check_eq!(tensor.to_vec()?, [0, 0, word, word, word, 0, 0, last]);
    Ok(())
}

fn bad_fills_are_refused(context: &Context) -> Verdict {
    let (tensor, stream) = words(context, 4)?;
    for (offset, count) in [(4, 1), (3, 2), (0, 5), (u64::MAX, 1), (1, u64::MAX), (1 << 62, 4)] {
        let error =
            check_err!(tensor.memset32(offset, 1, count).on(&stream), FillError::OutOfRange { .. });
        check_eq!(error.kind(), Kind::InvalidArgument);
        check!(
            matches!(error, FillError::OutOfRange { offset: o, count: c, words: 4 }
                if o == offset && c == count),
            "{error}"
        );
    }
    check_err!(tensor.write_value32(4, 1).on(&stream), FillError::OutOfRange { words: 4, .. });
    check_err!(tensor.memset32(0, 1, 0).on(&stream), FillError::NoWords);
    let floats = Tensor::<f32>::zeros(context.device(), &[4])?;
    let error = check_err!(floats.write_value32(0, 1).on(&stream), FillError::DType { .. });
    check!(error.to_string().contains("f32"), "{error}");
    let square = Tensor::<u32>::zeros(context.device(), &[2, 2])?;
    check_err!(square.memset32(0, 1, 1).on(&stream), FillError::NotFlat { .. });
    let allocation = Allocation::new(context.device(), Bytes::new(64))?;
    let gaps = View::new(&allocation, Bytes::ZERO, DType::U32, Layout::strided(&[4], &[2])?)?;
    check_err!(gaps.write_value32(0, 1).on(&stream), FillError::NotFlat { .. });
    let (_, other) = elsewhere(context)?;
    check_err!(tensor.write_value32(0, 1).on(&other), FillError::Backend { .. });
    stream.synchronize(&PATIENT)?;
    check_eq!(tensor.to_vec()?, [0; 4], "a refused fill has written");
    Ok(())
}
