//! f16 and bf16 to f32 and back, rounded to nearest even, in integer arithmetic only.
//!
//! Integer arithmetic, because a thread may run with denormals flushed to zero. The bits are those of the F16C
//! instructions, which the kernels use where the processor has them: also a NaN keeps its upper payload and becomes quiet.

pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10) & 0x1f;
    let mantissa = u32::from(half) & 0x3ff;
    let magnitude = match (exponent, mantissa) {
        (0, 0) => 0,
        (0, _) => {
            // Subnormal: its highest bit becomes the hidden one.
            let shift = mantissa.leading_zeros() - 21;
            ((113 - shift) << 23) | ((mantissa << (shift + 13)) & 0x7f_ffff)
        }
        (31, 0) => 0x7f80_0000,
        (31, _) => 0x7fc0_0000 | (mantissa << 13),
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | magnitude)
}

pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00; // at least 65520, which rounds to infinity
    }
    if magnitude < 0x3300_0001 {
        return sign; // at most half of the smallest subnormal
    }
    if magnitude < 0x3880_0000 {
        let exponent = magnitude >> 23;
        let mantissa = (magnitude & 0x7f_ffff) | 0x80_0000;
        let shift = 126 - exponent;
        let kept = mantissa >> shift;
        let rest = mantissa & ((1 << shift) - 1);
        let half = 1 << (shift - 1);
        let up = rest > half || (rest == half && kept & 1 == 1);
        return sign | (kept + u32::from(up)) as u16;
    }
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    sign | ((rounded - (112 << 23)) >> 13) as u16
}

pub(crate) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_comes_back() {
        for half in 0..=u16::MAX {
            let back = f32_to_f16(f16_to_f32(half));
            let nan = half & 0x7c00 == 0x7c00 && half & 0x3ff != 0;
            assert_eq!(back, if nan { half | 0x200 } else { half }, "{half:#06x}");
        }
    }

    #[test]
    fn every_bf16_comes_back() {
        for half in 0..=u16::MAX {
            let nan = half & 0x7f80 == 0x7f80 && half & 0x7f != 0;
            assert_eq!(f32_to_bf16(bf16_to_f32(half)), if nan { half | 0x40 } else { half }, "{half:#06x}");
        }
    }

    #[test]
    fn known_values() {
        let cases = [(1.0, 0x3c00), (-2.0, 0xc000), (65504.0, 0x7bff), (65519.9, 0x7bff), (65520.0, 0x7c00)];
        for (value, half) in cases {
            assert_eq!(f32_to_f16(value), half, "{value}");
        }
        // Ties go to even: 2049 lies between 2048 and 2050.
        assert_eq!(f16_to_f32(f32_to_f16(2049.0)), 2048.0);
        assert_eq!(f16_to_f32(f32_to_f16(2051.0)), 2052.0);
        assert_eq!(f32_to_f16(5.960_464_5e-8), 1);
        assert_eq!(f32_to_f16(2.980_232_2e-8), 0);
        assert_eq!(f32_to_bf16(1.003_906_2), 0x3f80);
        assert_eq!(f32_to_bf16(1.011_718_8), 0x3f82);
    }
}
