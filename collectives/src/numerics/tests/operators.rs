//! The table of operators and types.

use symmem_hal::types::DType;
use symmem_hal::{Fault, Kind};

use super::Level;
use crate::numerics::{ReduceOp, Reducer, UnsupportedOp};

#[test]
fn codes_and_names_round_trip() {
    for op in ReduceOp::ALL {
        assert_eq!(ReduceOp::from_code(op.code()), Some(op));
        assert_eq!(ReduceOp::from_name(op.name()), Some(op));
        assert_eq!(op.to_string(), op.name());
    }
    assert_eq!(ReduceOp::from_code(0), None);
    assert_eq!(ReduceOp::from_code(9), None);
    assert_eq!(ReduceOp::from_name("mean"), None);
}

#[test]
fn codes_are_those_on_the_wire() {
    let codes = ReduceOp::ALL.map(|op| (op.code(), op.name()));
    let expected = [
        (1, "sum"),
        (2, "avg"),
        (3, "min"),
        (4, "max"),
        (5, "product"),
        (6, "and"),
        (7, "or"),
        (8, "xor"),
    ];
    assert_eq!(codes, expected);
}

#[test]
fn bitwise_operators_are_refused_on_floats_alone() {
    for level in Level::available() {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let refused =
                    dtype.is_float() && matches!(op, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor);
                assert_eq!(op.supports(dtype), !refused);
                assert_eq!(op.check(dtype).is_err(), refused);
                let reducer = Reducer::at_level(level, dtype, op);
                assert_eq!(reducer.is_err(), refused, "{dtype} {op}");
                if let Ok(reducer) = reducer {
                    assert_eq!((reducer.dtype(), reducer.op()), (dtype, op));
                }
            }
        }
    }
}

#[test]
fn a_refusal_names_both() {
    let error = Reducer::new(DType::BF16, ReduceOp::Xor).unwrap_err();
    assert_eq!(error, UnsupportedOp { op: ReduceOp::Xor, dtype: DType::BF16 });
    assert_eq!(error.to_string(), "operator xor is defined on integers only, not on bf16");
    assert_eq!(error.kind(), Kind::InvalidArgument);
    assert!(error.ranks().is_empty());
}
