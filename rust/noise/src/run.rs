//! Events of probability e^-x, from comparisons of uniforms alone (von Neumann 1951).

use crate::bits::Bits;
use crate::lazy::Lazy;

/// Whether the longest run x > u1 > u2 > … > un, in which `go` also held n times, has even length.
///
/// # Needs
///
/// `go` holds with some probability p that depends on x only, independently each time.
///
/// # Gives
///
/// True with probability exp(-p x).
///
/// # Proof
///
/// n fresh uniforms are all below x with probability x^n, and are then in descending order with
/// probability 1/n!. So the run reaches length n with probability a(n) = (p x)^n / n!, and stops at
/// an even length with probability a(0) - a(1) + a(2) - a(3) + … = exp(-p x).
///
/// # Checked
///
/// `run::tests::probabilities_are_exact`, by enumeration of all digits.
pub fn even_run<B: Bits>(
    x: &mut Lazy,
    bits: &mut B,
    mut go: impl FnMut(&mut Lazy, &mut B) -> bool,
) -> bool {
    let mut even = true;
    let mut last: Option<Lazy> = None;
    loop {
        if !go(x, bits) {
            return even;
        }
        let mut next = Lazy::new(bits);
        if !next.less(last.as_mut().unwrap_or(x), bits) {
            return even;
        }
        even = !even;
        last = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lazy::coin;
    use crate::tape::assert_encloses;

    #[test]
    fn probabilities_are_exact() {
        // Over a uniform x, the integrals of e^-x and e^(-x/2).
        assert_encloses(1, 20, 0.012, 1.0 - (-1_f64).exp(), |bits| {
            even_run(&mut Lazy::new(bits), bits, |_, _| true)
        });
        assert_encloses(1, 20, 0.012, 2.0 - 2.0 * (-0.5_f64).exp(), |bits| {
            even_run(&mut Lazy::new(bits), bits, |_, bits| coin(bits))
        });
    }
}
