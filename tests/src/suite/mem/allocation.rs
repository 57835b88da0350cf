//! Allocations, views and tensors: local, so without ranks.

use symmem_hal::types::{Bytes, DType, Layout};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::{Allocation, Tensor, TensorError, View, ViewError, collect};

use crate::runner::{Context, Test, Verdict};
use crate::support::observe::Holdings;
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(an_address_finds_its_allocation).local(),
    test!(views_lie_in_their_memory).local(),
    test!(slices_lie_in_their_view).local(),
    test!(tensors_are_read_as_they_were_written).local(),
    test!(views_with_gaps_are_not_copied).local(),
    test!(too_much_says_how_much_there_is).local(),
    test!(memory_goes_when_its_last_holder_does).local(),
];

fn an_address_finds_its_allocation(context: &Context) -> Verdict {
    let sizes = [0, 1, 100, 4096, 100_000];
    let all = sizes
        .iter()
        .map(|bytes| Allocation::new(context.device(), Bytes::new(*bytes)))
        .collect::<Result<Vec<_>, _>>()?;
    for (allocation, &bytes) in all.iter().zip(&sizes) {
        let base = allocation.memory().base();
        for offset in [0, bytes / 2, bytes.saturating_sub(1)] {
            let address = base.checked_add(Bytes::new(offset)).unwrap_or(base);
            let found = Allocation::containing(address);
            check!(found.as_ref() == Some(allocation), "{bytes} bytes, offset {offset}: {found:?}");
        }
        let past = base.checked_add(Bytes::new(bytes.max(1))).unwrap_or(base);
        let found = Allocation::containing(past);
        check!(found.as_ref() != Some(allocation), "one past {bytes} bytes is found");
    }
    let gone = all[2].memory().base();
    drop(all);
    check!(Allocation::containing(gone).is_none(), "an allocation is found after its end");
    Ok(())
}

fn views_lie_in_their_memory(context: &Context) -> Verdict {
    let allocation = Allocation::new(context.device(), Bytes::new(100))?;
    let view = |offset, dtype, count| {
        View::new(&allocation, Bytes::new(offset), dtype, Layout::flat(count))
    };
    view(0, DType::U8, 100)?;
    view(96, DType::F32, 1)?;
    view(100, DType::F32, 0)?;
    view(4, DType::F64, 0).map_or(Ok(()), |_| {
        Err(crate::runner::TestError::failed("an f64 at offset 4 is accepted"))
    })?;
    for (offset, dtype, count) in [
        (1, DType::U8, 100),
        (96, DType::F32, 2),
        (104, DType::F64, 0),
        (0, DType::U8, u64::MAX),
        (8, DType::F64, u64::MAX / 8),
        (u64::MAX - 7, DType::F64, 1),
    ] {
        let size = Bytes::new(100);
        let error = check_err!(view(offset, dtype, count), ViewError::PastEnd { .. });
        check!(
            matches!(&error, ViewError::PastEnd { offset: o, size: s, .. }
                if *o == Bytes::new(offset) && *s == size),
            "{error}"
        );
        check_eq!(error.kind(), Kind::InvalidArgument);
    }
    for (offset, dtype) in [(1, DType::F16), (2, DType::F32), (4, DType::I64)] {
        let error = check_err!(view(offset, dtype, 1), ViewError::Misaligned { .. });
        check_eq!(error, ViewError::Misaligned { offset: Bytes::new(offset), dtype });
    }
    let strided = |strides: &[u64]| -> Result<_, crate::runner::TestError> {
        let layout = Layout::strided(&[5, 2], strides)?;
        Ok(View::new(&allocation, Bytes::ZERO, DType::F32, layout))
    };
    strided(&[5, 4])??;
    check_err!(strided(&[6, 1])?, ViewError::PastEnd { length: Bytes(104), .. });
    Ok(())
}

fn slices_lie_in_their_view(context: &Context) -> Verdict {
    let tensor = Tensor::<u32>::zeros(context.device(), &[10])?;
    tensor.write(&(0..10).collect::<Vec<u32>>())?;
    let inner = tensor.slice(2, 6)?;
    check_eq!(inner.to_vec()?, [2, 3, 4, 5, 6, 7]);
    check_eq!(inner.slice(5, 1)?.to_vec()?, [7]);
    check_eq!(inner.slice(6, 0)?.to_vec()?, [0u32; 0]);
    for (start, count) in [(5, 2), (7, 0), (0, 7), (u64::MAX / 4, 1), (1, u64::MAX)] {
        check_err!(inner.slice(start, count), ViewError::PastEnd { .. });
    }
    let error = check_err!(inner.slice(u64::MAX, 1), ViewError::PastAll { .. });
    check!(error.to_string().contains(&u64::MAX.to_string()), "{error}");
    Ok(())
}

fn tensors_are_read_as_they_were_written(context: &Context) -> Verdict {
    let tensor = Tensor::<f64>::zeros(context.device(), &[3, 5])?;
    check_eq!(tensor.to_vec()?, [0.0; 15]);
    let values: Vec<f64> = (0..15).map(|i| f64::from(i) / 7.0).collect();
    tensor.write(&values)?;
    check_eq!(tensor.to_vec()?, values);
    let error = check_err!(tensor.write(&[1.0f64; 14]), ViewError::Count { .. });
    check_eq!(error, ViewError::Count { expected: 15, found: 14 });
    let error = check_err!(tensor.view().write(&[1i64; 15]), ViewError::DType { .. });
    check_eq!(error, ViewError::DType { expected: DType::F64, found: DType::I64 });
    let mut out = [-1i64; 15];
    check_err!(tensor.view().read(&mut out), ViewError::DType { .. });
    check_eq!(out, [-1; 15], "a refused read wrote");
    check_eq!(tensor.to_vec()?, values, "a refused write wrote");
    check_err!(Tensor::<u8>::try_from(tensor.view().clone()), ViewError::DType { .. });
    Ok(())
}

fn views_with_gaps_are_not_copied(context: &Context) -> Verdict {
    let allocation = Allocation::new(context.device(), Bytes::new(100))?;
    let layout = Layout::strided(&[4, 2], &[3, 1])?;
    let view = View::new(&allocation, Bytes::ZERO, DType::U32, layout)?;
    check_eq!(view.count(), 8);
    check_err!(view.write(&[1u32; 8]), ViewError::NotContiguous { .. });
    check_err!(view.read(&mut [1u32; 8]), ViewError::NotContiguous { .. });
    check_err!(view.slice(0, 1), ViewError::NotContiguous { .. });
    Ok(())
}

fn too_much_says_how_much_there_is(context: &Context) -> Verdict {
    let error =
        check_err!(Tensor::<f32>::zeros(context.device(), &[1 << 50]), TensorError::Alloc(_));
    check_eq!(error.kind(), Kind::Exhausted);
    let text = error.to_string();
    check!(text.contains("4096 TiB") && text.contains("available"), "{text}");
    let error =
        check_err!(Tensor::<f32>::zeros(context.device(), &[1 << 63]), TensorError::Layout(_));
    check_eq!(error.kind(), Kind::InvalidArgument);
    Ok(())
}

fn memory_goes_when_its_last_holder_does(context: &Context) -> Verdict {
    collect();
    let before = Holdings::now()?;
    let tensor = Tensor::<u8>::zeros(context.device(), &[100_000])?;
    let view = tensor.view().clone();
    let held = Holdings::now()?;
    check_eq!(held.mappings, before.mappings + 1);
    check_eq!(held.descriptors, before.descriptors + 1);
    drop(tensor);
    check_eq!(collect(), Bytes::ZERO);
    check_eq!(Holdings::now()?, held, "a view still holds it");
    drop(view);
    check_eq!(collect(), Bytes::ZERO);
    check_eq!(Holdings::now()?, before);
    Ok(())
}
