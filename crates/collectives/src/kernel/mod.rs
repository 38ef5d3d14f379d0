//! Reduces the values of all ranks into one result, in one pass over memory.
//!
//! The order is part of the contract: element by element, a left fold from rank 0 upwards. It depends on nothing but the
//! number of inputs, so any cut of a buffer, any processor and any host gives the same bits. No multiply-add is ever fused.
//!
//! The loops are plain Rust over blocks that stay in registers, compiled twice: for the baseline processor and
//! for AVX2 + F16C, chosen at run time. (Wider vectors gain nothing: memory is the limit.) Pointers need no alignment,
//! and an output may be exactly one of the inputs.
#![expect(unsafe_code, reason = "reads and writes tensors through raw pointers")]

mod copy;
mod fold;
mod order;
mod rule;

use crate::dtype::{DataType, Reduction};
pub(crate) use copy::{copy, copy_of};
use fold::{BF16, F16, Rest, fold, fold_half};
use rule::{And, Average, Bool, Max, Min, Or, Premultiplied, Product, Sum, Xor};

/// Reduces `inputs[0][..count]`, `inputs[1][..count]` … into `outputs[0][..count]`, `outputs[1][..count]` …, all the same.
///
/// The caller has asked [`Reduction::check`] before.
///
/// # Safety
/// Every input is readable and every output writable for `count` elements; nobody else touches an output or writes to an
/// input meanwhile. An output is equal to an input or overlaps none, and overlaps no other output.
pub(crate) unsafe fn reduce(
    dtype: DataType,
    reduction: Reduction,
    inputs: &[*const u8],
    outputs: &[*mut u8],
    count: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { reduce_of(dtype, reduction, inputs, outputs, count, inputs.len()) }
}

/// As [`reduce`], of inputs that stand for so many ranks: some of them may be sums already.
///
/// # Safety
/// As for [`reduce`].
pub(crate) unsafe fn reduce_of(
    dtype: DataType,
    reduction: Reduction,
    inputs: &[*const u8],
    outputs: &[*mut u8],
    count: usize,
    ranks: usize,
) {
    let rest = Rest { factor: 0.0, ranks };
    macro_rules! numbers {
        ($fold:ident, $number:ty, $count:expr) => {
            match reduction {
                Reduction::Sum => $fold::<$number, Sum>(inputs, outputs, $count, rest),
                Reduction::Average => $fold::<$number, Average>(inputs, outputs, $count, rest),
                Reduction::Product => $fold::<$number, Product>(inputs, outputs, $count, rest),
                Reduction::Min => $fold::<$number, Min>(inputs, outputs, $count, rest),
                Reduction::Max => $fold::<$number, Max>(inputs, outputs, $count, rest),
                Reduction::PremultipliedSum(factor) => {
                    $fold::<$number, Premultiplied>(inputs, outputs, $count, Rest { factor, ranks });
                }
                Reduction::BitAnd | Reduction::BitOr | Reduction::BitXor => refused(dtype, reduction),
            }
        };
    }
    macro_rules! integers {
        ($number:ty) => {
            match reduction {
                Reduction::Sum => fold::<$number, Sum>(inputs, outputs, count, rest),
                Reduction::Average => fold::<$number, Average>(inputs, outputs, count, rest),
                Reduction::Product => fold::<$number, Product>(inputs, outputs, count, rest),
                Reduction::Min => fold::<$number, Min>(inputs, outputs, count, rest),
                Reduction::Max => fold::<$number, Max>(inputs, outputs, count, rest),
                Reduction::BitAnd => fold::<$number, And>(inputs, outputs, count, rest),
                Reduction::BitOr => fold::<$number, Or>(inputs, outputs, count, rest),
                Reduction::BitXor => fold::<$number, Xor>(inputs, outputs, count, rest),
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
                Reduction::Sum | Reduction::Max | Reduction::BitOr => fold::<Bool, Or>(inputs, outputs, count, rest),
                Reduction::Min | Reduction::BitAnd => fold::<Bool, And>(inputs, outputs, count, rest),
                Reduction::BitXor => fold::<Bool, Xor>(inputs, outputs, count, rest),
                Reduction::Average | Reduction::Product | Reduction::PremultipliedSum(_) => refused(dtype, reduction),
            },
            DataType::Bytes => refused(dtype, reduction),
        }
    }
}

/// Whether the AVX2 + F16C loops can run here.
fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

fn refused(dtype: DataType, reduction: Reduction) -> ! {
    unreachable!("{} on {} is refused before an operation starts", reduction.name(), dtype.name())
}

#[cfg(test)]
mod tests;
