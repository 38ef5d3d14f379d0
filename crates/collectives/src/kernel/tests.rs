//! Every kernel against a naive fold, for every type, reduction, number of inputs and odd lengths.

use proptest::prelude::*;

use super::fold::{BF16, F16, fold_half_plain};
use super::rule::{Average, Sum};
use super::*;
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

fn run(dtype: DataType, reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut outputs = [(); 2].map(|()| vec![0u8; inputs[0].len()]);
    let pointers: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
    let results = outputs.each_mut().map(|output| output.as_mut_ptr());
    // SAFETY: all have the same length, and the outputs are vectors of their own.
    unsafe { reduce(dtype, reduction, &pointers, &results, inputs[0].len() / dtype.size()) };
    let [output, other] = outputs;
    assert_eq!(output, other);
    output
}

/// One element at a time, in the plainest words; floats as f64 bits, integers as i128.
fn naive(dtype: DataType, reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    macro_rules! element_wise {
        ($number:ty, $fold:expr) => {{
            let size = size_of::<$number>();
            (0..inputs[0].len() / size)
                .flat_map(|at| {
                    let values: Vec<$number> = inputs
                        .iter()
                        .map(|input| <$number>::from_ne_bytes(input[at * size..][..size].try_into().unwrap()))
                        .collect();
                    let fold: fn(&[$number], Reduction) -> $number = $fold;
                    fold(&values, reduction).to_ne_bytes()
                })
                .collect()
        }};
    }
    macro_rules! float {
        ($number:ty) => {
            |values, reduction| {
                let ranks = values.len() as $number;
                let values = values.iter().copied();
                match reduction {
                    Reduction::Sum => values.reduce(|a, b| a + b).unwrap(),
                    Reduction::Average => values.reduce(|a, b| a + b).unwrap() / ranks,
                    Reduction::Product => values.reduce(|a, b| a * b).unwrap(),
                    Reduction::Min => values.reduce(|a, b| if b < a { b } else { a }).unwrap(),
                    Reduction::Max => values.reduce(|a, b| if a < b { b } else { a }).unwrap(),
                    Reduction::PremultipliedSum(factor) => {
                        values.map(|value| factor as $number * value).reduce(|a, b| a + b).unwrap()
                    }
                    Reduction::BitAnd | Reduction::BitOr | Reduction::BitXor => unreachable!(),
                }
            }
        };
    }
    macro_rules! integer {
        ($number:ty) => {
            |values, reduction| {
                let ranks = values.len() as i128;
                let values = values.iter().copied();
                match reduction {
                    Reduction::Sum => values.reduce(|a, b| a.wrapping_add(b)).unwrap(),
                    Reduction::Average => {
                        (i128::from(values.reduce(|a, b| a.wrapping_add(b)).unwrap()) / ranks) as $number
                    }
                    Reduction::Product => values.reduce(|a, b| a.wrapping_mul(b)).unwrap(),
                    Reduction::Min => values.min().unwrap(),
                    Reduction::Max => values.max().unwrap(),
                    Reduction::BitAnd => values.reduce(|a, b| a & b).unwrap(),
                    Reduction::BitOr => values.reduce(|a, b| a | b).unwrap(),
                    Reduction::BitXor => values.reduce(|a, b| a ^ b).unwrap(),
                    Reduction::PremultipliedSum(_) => unreachable!(),
                }
            }
        };
    }
    match dtype {
        DataType::F64 | DataType::Complex128 => element_wise!(f64, float!(f64)),
        DataType::F32 | DataType::Complex64 => element_wise!(f32, float!(f32)),
        DataType::F16 => element_wise!(u16, |values, reduction| {
            let values: Vec<f32> = values.iter().map(|value| f16_to_f32(*value)).collect();
            let fold: fn(&[f32], Reduction) -> f32 = float!(f32);
            f32_to_f16(fold(&values, reduction))
        }),
        DataType::BF16 => element_wise!(u16, |values, reduction| {
            let values: Vec<f32> = values.iter().map(|value| bf16_to_f32(*value)).collect();
            let fold: fn(&[f32], Reduction) -> f32 = float!(f32);
            f32_to_bf16(fold(&values, reduction))
        }),
        DataType::I8 => element_wise!(i8, integer!(i8)),
        DataType::U8 => element_wise!(u8, integer!(u8)),
        DataType::I16 => element_wise!(i16, integer!(i16)),
        DataType::I32 => element_wise!(i32, integer!(i32)),
        DataType::I64 => element_wise!(i64, integer!(i64)),
        DataType::Bool => element_wise!(u8, |values, reduction| {
            let mut bools = values.iter().map(|value| *value != 0);
            u8::from(match reduction {
                Reduction::Sum | Reduction::Max | Reduction::BitOr => bools.any(|boolean| boolean),
                Reduction::Min | Reduction::BitAnd => bools.all(|boolean| boolean),
                Reduction::BitXor => bools.fold(false, |a, b| a ^ b),
                _ => unreachable!(),
            })
        }),
        DataType::Bytes => unreachable!(),
    }
}

/// Whether two results are the same, where any NaN is as good as another: which payload survives is the processor's choice.
fn same(dtype: DataType, one: &[u8], other: &[u8]) -> bool {
    let half_nan = |bytes: &[u8], exponent: u16| {
        let bits = u16::from_ne_bytes(bytes.try_into().unwrap());
        bits & exponent == exponent && bits & !(exponent | 0x8000) != 0
    };
    let nan = |bytes: &[u8]| match dtype {
        DataType::F64 | DataType::Complex128 => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DataType::F32 | DataType::Complex64 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        DataType::F16 => half_nan(bytes, 0x7c00),
        DataType::BF16 => half_nan(bytes, 0x7f80),
        _ => false,
    };
    let size = match dtype {
        DataType::Complex64 => 4,
        DataType::Complex128 => 8,
        other => other.size(),
    };
    one.chunks(size).zip(other.chunks(size)).all(|(one, other)| one == other || (nan(one) && nan(other)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_bytes_reduce_as_the_naive_fold(
        length in prop_oneof![0usize..40, 250usize..270, 1020usize..1030],
        ranks in 1usize..10,
        seed in any::<u64>(),
    ) {
        for dtype in DataType::ALL.into_iter().filter(|dtype| *dtype != DataType::Bytes) {
            for reduction in Reduction::ALL.into_iter().filter(|reduction| reduction.check(dtype).is_ok()) {
                let mut state = seed | 1;
                let inputs: Vec<Vec<u8>> = (0..ranks)
                    .map(|_| {
                        (0..length * dtype.size())
                            .map(|_| {
                                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                                // Every third byte is 0x3f, so that floats of ordinary size are frequent.
                                if state >> 62 == 0 { 0x3f } else { (state >> 40) as u8 }
                            })
                            .collect()
                    })
                    .collect();
                let found = run(dtype, reduction, &inputs);
                let expected = naive(dtype, reduction, &inputs);
                prop_assert!(same(dtype, &found, &expected), "{} {} {ranks} × {length}", dtype.name(), reduction.name());
            }
        }
    }
}

#[test]
fn the_output_may_be_an_input_and_nothing_need_be_aligned() {
    for place in 0..3 {
        let mut buffers: Vec<Vec<u8>> = (0..3).map(|rank| vec![0u8; 4 * 777 + 1 + rank]).collect();
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            for at in 0..777 {
                buffer[1 + 4 * at..][..4].copy_from_slice(&((rank * 1000 + at) as f32).to_ne_bytes());
            }
        }
        // SAFETY: one byte further on there is still room for 777 elements; the output is exactly one of the inputs.
        unsafe {
            let pointers: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr().add(1)).collect();
            let inputs: Vec<*const u8> = pointers.iter().map(|pointer| pointer.cast_const()).collect();
            reduce(DataType::F32, Reduction::Sum, &inputs, &[pointers[place]], 777);
        }
        for at in 0..777 {
            let found = f32::from_ne_bytes(buffers[place][1 + 4 * at..][..4].try_into().unwrap());
            assert_eq!(found, (3000 + 3 * at) as f32);
        }
    }
}

#[test]
fn half_precision_has_the_same_bits_with_and_without_f16c() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let other: Vec<u16> = all.iter().map(|half| half.rotate_left(5) ^ 0x1234).collect();
    let inputs = [all.as_ptr().cast::<u8>(), other.as_ptr().cast::<u8>()];
    let mut plain = vec![0u16; all.len()];
    let mut chosen = vec![0u16; all.len()];
    let rest = Rest { factor: 0.0, ranks: 2 };
    // SAFETY: four vectors of the same length.
    unsafe {
        fold_half_plain::<F16, Sum, false>(&inputs, &[plain.as_mut_ptr().cast()], all.len(), rest);
        fold_half::<F16, Sum>(&inputs, &[chosen.as_mut_ptr().cast()], all.len(), rest);
    }
    let bytes = |halves: &[u16]| halves.iter().flat_map(|half| half.to_ne_bytes()).collect::<Vec<u8>>();
    assert!(same(DataType::F16, &bytes(&plain), &bytes(&chosen)));
    // SAFETY: as above.
    unsafe {
        fold_half_plain::<BF16, Average, false>(&inputs, &[plain.as_mut_ptr().cast()], all.len(), rest);
        fold_half::<BF16, Average>(&inputs, &[chosen.as_mut_ptr().cast()], all.len(), rest);
    }
    assert!(same(DataType::BF16, &bytes(&plain), &bytes(&chosen)));
}

#[test]
fn halves_are_rounded_once() {
    // 2048 + 1 + 1 in f16, rounded after each step, would stay 2048.
    let inputs: Vec<Vec<u8>> =
        [2048.0, 1.0, 1.0].iter().map(|value| f32_to_f16(*value).to_ne_bytes().to_vec()).collect();
    let sum = run(DataType::F16, Reduction::Sum, &inputs);
    assert_eq!(f16_to_f32(u16::from_ne_bytes([sum[0], sum[1]])), 2050.0);
}

#[test]
fn a_nan_of_rank_0_stays_and_a_later_one_is_passed_over() {
    let value = |value: f32| value.to_ne_bytes().to_vec();
    let first = run(DataType::F32, Reduction::Max, &[value(f32::NAN), value(1.0)]);
    let later = run(DataType::F32, Reduction::Max, &[value(1.0), value(f32::NAN)]);
    assert!(f32::from_ne_bytes(first.try_into().unwrap()).is_nan());
    assert_eq!(f32::from_ne_bytes(later.try_into().unwrap()), 1.0);
}
