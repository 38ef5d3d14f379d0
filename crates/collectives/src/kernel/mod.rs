//! Reduces the values of all ranks into one result, in one pass over memory.
//!
//! The order is part of the contract: element by element, a left fold from rank 0 upwards. It depends on nothing but the
//! number of inputs, so any cut of a buffer, any processor and any host gives the same bits (`canonical` in the design;
//! inside a host there is no faster `layout` order). No multiply-add is ever fused.
//!
//! The loops are plain Rust over blocks that stay in the first-level cache, compiled twice: for the baseline processor and
//! for AVX2 + F16C, chosen at run time. Pointers need no alignment, and the output may be exactly one of the inputs.
#![expect(unsafe_code, reason = "reads and writes tensors through raw pointers")]

mod fold;
mod rule;

use crate::dtype::{DataType, Reduction};
use fold::{BF16, F16, fold, fold_half};
use rule::{And, Average, Max, Min, Or, Premultiplied, Product, Sum, Truth, Xor};

/// Reduces `inputs[0][..count]`, `inputs[1][..count]` … into `output[..count]`.
///
/// The caller has asked [`Reduction::check`] before.
///
/// # Safety
/// Every input is readable and the output writable for `count` elements; nobody writes to an input meanwhile. The output
/// is equal to an input or overlaps none.
pub(crate) unsafe fn reduce(
    dtype: DataType,
    reduction: Reduction,
    inputs: &[*const u8],
    output: *mut u8,
    count: usize,
) {
    macro_rules! numbers {
        ($fold:ident, $number:ty, $count:expr) => {
            match reduction {
                Reduction::Sum => $fold::<$number, Sum>(inputs, output, $count, 0.0),
                Reduction::Average => $fold::<$number, Average>(inputs, output, $count, 0.0),
                Reduction::Product => $fold::<$number, Product>(inputs, output, $count, 0.0),
                Reduction::Min => $fold::<$number, Min>(inputs, output, $count, 0.0),
                Reduction::Max => $fold::<$number, Max>(inputs, output, $count, 0.0),
                Reduction::PremultipliedSum(factor) => {
                    $fold::<$number, Premultiplied>(inputs, output, $count, factor);
                }
                Reduction::BitAnd | Reduction::BitOr | Reduction::BitXor => refused(dtype, reduction),
            }
        };
    }
    macro_rules! integers {
        ($number:ty) => {
            match reduction {
                Reduction::Sum => fold::<$number, Sum>(inputs, output, count, 0.0),
                Reduction::Average => fold::<$number, Average>(inputs, output, count, 0.0),
                Reduction::Product => fold::<$number, Product>(inputs, output, count, 0.0),
                Reduction::Min => fold::<$number, Min>(inputs, output, count, 0.0),
                Reduction::Max => fold::<$number, Max>(inputs, output, count, 0.0),
                Reduction::BitAnd => fold::<$number, And>(inputs, output, count, 0.0),
                Reduction::BitOr => fold::<$number, Or>(inputs, output, count, 0.0),
                Reduction::BitXor => fold::<$number, Xor>(inputs, output, count, 0.0),
                Reduction::PremultipliedSum(_) => refused(dtype, reduction),
            }
        };
    }
    // SAFETY: the caller's promise is the one the folds ask for; a complex number is two floats that never mix.
    unsafe {
        match dtype {
            DataType::F64 => numbers!(fold, f64, count),
            DataType::F32 => numbers!(fold, f32, count),
            DataType::F16 => numbers!(fold_half, F16, count),
            DataType::BF16 => numbers!(fold_half, BF16, count),
            DataType::Complex64 => numbers!(fold, f32, 2 * count),
            DataType::Complex128 => numbers!(fold, f64, 2 * count),
            DataType::I8 => integers!(i8),
            DataType::U8 => integers!(u8),
            DataType::I16 => integers!(i16),
            DataType::I32 => integers!(i32),
            DataType::I64 => integers!(i64),
            DataType::Bool => match reduction {
                Reduction::Sum | Reduction::Max | Reduction::BitOr => fold::<Truth, Or>(inputs, output, count, 0.0),
                Reduction::Min | Reduction::BitAnd => fold::<Truth, And>(inputs, output, count, 0.0),
                Reduction::BitXor => fold::<Truth, Xor>(inputs, output, count, 0.0),
                Reduction::Average | Reduction::Product | Reduction::PremultipliedSum(_) => refused(dtype, reduction),
            },
            DataType::Bytes => refused(dtype, reduction),
        }
    }
}

fn refused(dtype: DataType, reduction: Reduction) -> ! {
    unreachable!("{} on {} is refused before an operation starts", reduction.name(), dtype.name())
}

#[cfg(test)]
mod tests;
