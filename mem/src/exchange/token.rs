//! Proof that a process belongs to a run.
//!
//! Ranks of a run share a secret, which the first of them puts into the store. It never travels
//! between them, and stands in no name, argument or log: each side proves that it knows the secret
//! by a keyed hash of both sides' nonces (HMAC-SHA-256), compared in constant time: `Mac::verify_slice`
//! of the crate `digest`, by `CtEq` of `ctutils`. No variable of the environment holds it, either:
//! what a launcher sets says where the store is, and who may read that is the store's.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::ExchangeError;

/// The secret of a run.
#[derive(Clone)]
pub(crate) struct Token([u8; 32]);

impl core::fmt::Debug for Token {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whose proof: a member's cannot be sent back as the leader's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Member,
    Leader,
}

impl Token {
    pub(crate) fn fresh() -> Result<Self, ExchangeError> {
        Ok(Token(random()?))
    }

    /// As the store keeps it.
    pub(crate) fn to_hex(&self) -> String {
        hex(&self.0)
    }

    pub(crate) fn from_hex(text: &[u8]) -> Option<Self> {
        let text: &[u8; 64] = text.try_into().ok()?;
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let mut bytes = [0; 32];
        let (pairs, _) = text.as_chunks::<2>();
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Token(bytes))
    }

    fn mac(&self, side: Side, leader: &[u8; 16], member: &[u8; 16]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(match side {
            Side::Member => b"symmem member",
            Side::Leader => b"symmem leader",
        });
        mac.update(leader);
        mac.update(member);
        Some(mac)
    }

    /// This side's proof.
    pub(crate) fn prove(&self, side: Side, leader: &[u8; 16], member: &[u8; 16]) -> [u8; 32] {
        self.mac(side, leader, member).map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether the other side's proof holds.
    pub(crate) fn verify(
        &self,
        side: Side,
        leader: &[u8; 16],
        member: &[u8; 16],
        proof: &[u8; 32],
    ) -> bool {
        self.mac(side, leader, member).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

/// Fresh random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], ExchangeError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| ExchangeError::system("getrandom", e))?;
    Ok(bytes)
}

/// A name for the meeting point of a run's generation: says nothing of the run or the token.
pub(crate) fn meeting_name(run: &str, generation: u32) -> String {
    let mut hash = Sha256::new();
    hash.update(b"symmem meeting point");
    hash.update(run.as_bytes());
    hash.update(generation.to_le_bytes());
    format!("symmem-{}", hex(&hash.finalize()[..16]))
}

/// A run's name where its launcher gave none: made of the token, from which it says nothing.
pub(crate) fn run_name(token: &Token) -> String {
    let mut hash = Sha256::new();
    hash.update(b"symmem run");
    hash.update(token.0);
    format!("run-{}", hex(&hash.finalize()[..8]))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    #[test]
    fn proofs_hold_for_one_token_side_and_pair_of_nonces() {
        let (a, b) = (Token::fresh().unwrap(), Token::fresh().unwrap());
        let (l, m) = ([1; 16], [2; 16]);
        let proof = a.prove(Side::Member, &l, &m);
        assert!(a.verify(Side::Member, &l, &m, &proof));
        assert!(!b.verify(Side::Member, &l, &m, &proof));
        assert!(!a.verify(Side::Leader, &l, &m, &proof));
        assert!(!a.verify(Side::Member, &m, &l, &proof));
        assert!(!a.verify(Side::Member, &l, &m, &[0; 32]));
    }

    #[test]
    fn a_token_round_trips_and_is_not_printed() {
        let token = Token::fresh().unwrap();
        assert_eq!(Token::from_hex(token.to_hex().as_bytes()).unwrap().0, token.0);
        assert!(Token::from_hex(b"zz").is_none() && Token::from_hex(&[b'g'; 64]).is_none());
        assert!(Token::from_hex("é".repeat(32).as_bytes()).is_none());
        // A sign is no digit.
        assert!(Token::from_hex("+1".repeat(32).as_bytes()).is_none());
        let upper = token.to_hex().to_uppercase();
        assert_eq!(Token::from_hex(upper.as_bytes()).unwrap().0, token.0);
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
