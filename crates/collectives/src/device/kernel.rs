//! The programs that reduce on the GPU, written for its virtual machine (PTX): the driver compiles them for the card.
//!
//! One program for a type and a reduction. Element `i` of the target becomes the fold of element `i` of all sources, in
//! the order of ranks, with the rules of [`crate::DataType`]: the same bits as on the host, and on every rank.

use std::ffi::CStr;
use std::fmt::Write;

use crate::dtype::{DataType, Reduction};

pub(super) const NAME: &CStr = c"fold";
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Enough blocks to fill any card; each thread takes elements this many threads apart.
pub(super) const MOST_BLOCKS: u32 = 1056;

/// How one type lives in registers.
struct Registers {
    /// The type of the accumulator.
    fold: &'static str,
    /// Puts the element at `%at` into `%v`.
    load: &'static str,
    /// Puts `%acc` to `%to`.
    store: &'static str,
    /// Cuts `%acc` to the width of the type, where the register is wider.
    wrap: &'static str,
}

const HALF_STORE: &str = "cvt.rn.f16.f32 %h, %acc; st.global.b16 [%to], %h;";
const BRAIN_LOAD: &str = "ld.global.u16 %h, [%at]; cvt.u32.u16 %w, %h; shl.b32 %w, %w, 16; mov.b32 %v, %w;";
// To the nearest, ties to even; a NaN stays one.
const BRAIN_STORE: &str = "mov.b32 %w, %acc; shr.u32 %x, %w, 16; and.b32 %y, %x, 1; add.u32 %y, %y, 32767; \
    add.u32 %y, %w, %y; shr.u32 %y, %y, 16; or.b32 %x, %x, 64; setp.nan.f32 %p, %acc, %acc; \
    selp.b32 %y, %x, %y, %p; cvt.u16.u32 %h, %y; st.global.b16 [%to], %h;";

fn registers(dtype: DataType) -> Option<Registers> {
    let plain = |fold, load, store, wrap| Some(Registers { fold, load, store, wrap });
    match dtype {
        DataType::F64 | DataType::Complex128 => {
            plain("f64", "ld.global.f64 %v, [%at];", "st.global.f64 [%to], %acc;", "")
        }
        DataType::F32 | DataType::Complex64 => {
            plain("f32", "ld.global.f32 %v, [%at];", "st.global.f32 [%to], %acc;", "")
        }
        DataType::F16 => plain("f32", "ld.global.b16 %h, [%at]; cvt.f32.f16 %v, %h;", HALF_STORE, ""),
        DataType::BF16 => plain("f32", BRAIN_LOAD, BRAIN_STORE, ""),
        DataType::I8 => {
            plain("s32", "ld.global.s8 %v, [%at];", "st.global.u8 [%to], %acc;", "bfe.s32 %acc, %acc, 0, 8;")
        }
        DataType::U8 => {
            plain("s32", "ld.global.u8 %v, [%at];", "st.global.u8 [%to], %acc;", "and.b32 %acc, %acc, 255;")
        }
        DataType::I16 => {
            plain("s32", "ld.global.s16 %v, [%at];", "st.global.u16 [%to], %acc;", "bfe.s32 %acc, %acc, 0, 16;")
        }
        DataType::I32 => plain("s32", "ld.global.s32 %v, [%at];", "st.global.s32 [%to], %acc;", ""),
        DataType::I64 => plain("s64", "ld.global.s64 %v, [%at];", "st.global.s64 [%to], %acc;", ""),
        DataType::Bool => plain(
            "s32",
            "ld.global.u8 %v, [%at]; setp.ne.s32 %p, %v, 0; selp.s32 %v, 1, 0, %p;",
            "st.global.u8 [%to], %acc;",
            "",
        ),
        DataType::Bytes => None,
    }
}

/// What becomes of `%acc` when `%v` of the next rank comes.
fn step(dtype: DataType, reduction: Reduction, fold: &str) -> String {
    let bits = if fold == "s64" { "b64" } else { "b32" };
    let is_float = fold.starts_with('f');
    let either = |float: &str, whole: String| if is_float { float.to_owned() } else { whole };
    let boolean = dtype == DataType::Bool;
    match reduction {
        Reduction::Sum | Reduction::Max if boolean => "or.b32 %acc, %acc, %v;".to_owned(),
        Reduction::Min if boolean => "and.b32 %acc, %acc, %v;".to_owned(),
        Reduction::Sum | Reduction::Average | Reduction::PremultipliedSum(_) => {
            either(&format!("add.rn.{fold} %acc, %acc, %v;"), format!("add.{fold} %acc, %acc, %v;"))
        }
        Reduction::Product => {
            either(&format!("mul.rn.{fold} %acc, %acc, %v;"), format!("mul.lo.{fold} %acc, %acc, %v;"))
        }
        // A comparison with a NaN is false: it is passed over, and stays where it was first.
        Reduction::Min => either(
            &format!("setp.lt.{fold} %p, %v, %acc; selp.{fold} %acc, %v, %acc, %p;"),
            format!("min.{fold} %acc, %acc, %v;"),
        ),
        Reduction::Max => either(
            &format!("setp.gt.{fold} %p, %v, %acc; selp.{fold} %acc, %v, %acc, %p;"),
            format!("max.{fold} %acc, %acc, %v;"),
        ),
        Reduction::BitAnd => format!("and.{bits} %acc, %acc, %v;"),
        Reduction::BitOr => format!("or.{bits} %acc, %acc, %v;"),
        Reduction::BitXor => format!("xor.{bits} %acc, %acc, %v;"),
    }
}

/// Whether there are programs for a type.
pub(super) fn has_programs(dtype: DataType) -> bool {
    registers(dtype).is_some()
}

/// The program for a type and a reduction that go together.
pub(super) fn program(dtype: DataType, reduction: Reduction) -> Option<String> {
    let Registers { fold, load, store, wrap } = registers(dtype)?;
    let size = element_size(dtype);
    let scale = match reduction {
        Reduction::PremultipliedSum(_) => format!("mul.rn.{fold} %v, %v, %factor;"),
        _ => String::new(),
    };
    let finish = match (reduction, fold) {
        (Reduction::Average, "f32") => "cvt.rn.f32.u32 %v, %ranks; div.rn.f32 %acc, %acc, %v;".to_owned(),
        (Reduction::Average, "f64") => "cvt.rn.f64.u32 %v, %ranks; div.rn.f64 %acc, %acc, %v;".to_owned(),
        (Reduction::Average, whole) => {
            let from = if whole == "s64" { "cvt.s64.u32 %v, %ranks;" } else { "mov.b32 %v, %ranks;" };
            format!("{wrap} {from} div.{whole} %acc, %acc, %v;")
        }
        _ => String::new(),
    };
    let factor = if fold == "f32" {
        "ld.param.f64 %wide, [factor]; cvt.rn.f32.f64 %factor, %wide;"
    } else if fold == "f64" {
        "ld.param.f64 %factor, [factor];"
    } else {
        ""
    };
    let factor_type = if fold.starts_with('f') { fold } else { "f32" };
    let step = step(dtype, reduction, fold);
    let mut text = String::new();
    let written = write!(
        text,
        ".version 7.0
.target sm_70
.address_size 64
.visible .entry fold(.param .u64 sources, .param .u32 ranks, .param .u64 offset, .param .u64 target,
    .param .u64 count, .param .f64 factor)
{{
    .reg .{fold} %acc, %v;
    .reg .{factor_type} %factor;
    .reg .f64 %wide;
    .reg .b16 %h;
    .reg .b32 %w, %x, %y, %ranks, %rank, %block, %thread, %threads, %blocks;
    .reg .b64 %sources, %offset, %target, %count, %index, %apart, %place, %at, %to, %entry;
    .reg .pred %p, %more, %end;
    ld.param.u64 %sources, [sources];
    ld.param.u32 %ranks, [ranks];
    ld.param.u64 %offset, [offset];
    ld.param.u64 %target, [target];
    ld.param.u64 %count, [count];
    {factor}
    mov.u32 %block, %ctaid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %blocks, %nctaid.x;
    mul.wide.u32 %index, %block, %threads;
    cvt.u64.u32 %at, %thread;
    add.u64 %index, %index, %at;
    mul.wide.u32 %apart, %blocks, %threads;
ELEMENT:
    setp.ge.u64 %end, %index, %count;
    @%end bra DONE;
    mul.lo.u64 %place, %index, {size};
    add.u64 %to, %target, %place;
    add.u64 %place, %place, %offset;
    ld.global.u64 %at, [%sources];
    add.u64 %at, %at, %place;
    {load} {scale}
    mov.{fold} %acc, %v;
    mov.u32 %rank, 1;
    add.u64 %entry, %sources, 8;
RANK:
    setp.lt.u32 %more, %rank, %ranks;
    @!%more bra FOLDED;
    ld.global.u64 %at, [%entry];
    add.u64 %at, %at, %place;
    {load} {scale}
    {step}
    add.u32 %rank, %rank, 1;
    add.u64 %entry, %entry, 8;
    bra RANK;
FOLDED:
    {finish}
    {store}
    add.u64 %index, %index, %apart;
    bra ELEMENT;
DONE:
    ret;
}}
"
    );
    written.ok()?;
    Some(text)
}

/// Bytes of what the program takes for one element: complex numbers are two.
pub(super) fn element_size(dtype: DataType) -> usize {
    match dtype {
        DataType::Complex64 => 4,
        DataType::Complex128 => 8,
        other => other.size(),
    }
}

#[cfg(test)]
mod tests {
    use super::{program, registers};
    use crate::dtype::{DataType, Reduction};

    #[test]
    fn every_pair_that_goes_together_has_a_program_whose_registers_are_declared() {
        for dtype in DataType::ALL.into_iter().filter(|dtype| *dtype != DataType::Bytes) {
            for reduction in Reduction::ALL {
                let text = program(dtype, reduction).expect("a program");
                let names = text.split(|letter: char| !(letter.is_alphanumeric() || "%.".contains(letter)));
                for name in names.filter(|name| name.starts_with('%') && !name.contains('.')) {
                    let declared = text.lines().any(|line| {
                        line.trim_start().starts_with(".reg") && line.split([' ', ',', ';']).any(|word| word == name)
                    });
                    assert!(declared, "{name} in\n{text}");
                }
            }
        }
        assert!(registers(DataType::Bytes).is_none());
    }
}
