//! What ranks bring, what each must have at the end, and the keys of it.

/// What is exchanged within a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// A record of each rank.
    Records,
    /// Then each rank's vote on what came of them.
    Votes,
}

/// Bytes of a rank's vote.
pub const VOTE: usize = 16;

/// The contents of one run, which no other run has.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    run: u64,
    record: usize,
}

impl Content {
    /// Records of so many bytes.
    pub fn new(run: u64, record: usize) -> Self {
        Content { run, record }
    }

    /// Bytes of one rank in a round.
    pub fn length(&self, round: Round) -> usize {
        match round {
            Round::Records => self.record,
            Round::Votes => VOTE,
        }
    }

    fn words(&self, round: Round, rank: u32) -> impl Iterator<Item = [u8; 8]> {
        let seed = self.run ^ u64::from(rank) << 8 ^ round as u64;
        // The finaliser of splitmix64: ranks that are near each other have nothing in common.
        let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
        (0..).map(move |i: u64| x.wrapping_mul(2 * i + 1).to_le_bytes())
    }

    /// Appends what a rank brings.
    pub fn put(&self, round: Round, rank: u32, out: &mut Vec<u8>) {
        let end = out.len() + self.length(round);
        for word in self.words(round, rank) {
            if out.len() >= end {
                break;
            }
            out.extend_from_slice(&word);
        }
        out.truncate(end);
    }

    /// Whether that is what a rank brought.
    pub fn is(&self, round: Round, rank: u32, bytes: &[u8]) -> bool {
        let pieces = bytes.chunks(8).zip(self.words(round, rank));
        bytes.len() == self.length(round)
            && pieces.fold(true, |same, (found, word)| same & (*found == word[..found.len()]))
    }

    /// Whether those are what these ranks brought, one after the other.
    pub fn are(&self, round: Round, ranks: impl Iterator<Item = u32>, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        let well = |rank| {
            let own = rest.split_at_checked(self.length(round));
            own.is_some_and(|(own, after)| {
                rest = after;
                self.is(round, rank, own)
            })
        };
        ranks.map(well).fold(true, |all, one| all & one) && rest.is_empty()
    }

    /// What stands before all keys of the run.
    fn prefix(&self) -> String {
        format!("symmem/{:016x}", self.run)
    }

    /// The key of the run's token.
    pub fn token_key(&self) -> String {
        format!("{}/token", self.prefix())
    }

    /// What a rank proposes for it: 32 hexadecimal digits.
    pub fn token(&self, rank: u32) -> String {
        format!("{:016x}{rank:016x}", self.run)
    }

    /// Whether that is what some rank has proposed.
    pub fn is_token(&self, found: &[u8]) -> bool {
        found.len() == 32 && found.starts_with(format!("{:016x}", self.run).as_bytes())
    }

    /// The key of a group's round; that of a slot follows after a slash.
    pub fn group_key(&self, round: Round, group: u32) -> String {
        let round = match round {
            Round::Records => "records",
            Round::Votes => "votes",
        };
        format!("{}/{group}/{round}", self.prefix())
    }

    pub fn slot_key(&self, round: Round, group: u32, slot: u32) -> String {
        format!("{}/{slot}", self.group_key(round, group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_brings_is_known_and_nothing_else_is_it() {
        let content = Content::new(7, 203);
        let of = |round, rank| {
            let mut out = vec![1, 2, 3];
            content.put(round, rank, &mut out);
            out.split_off(3)
        };
        let own = of(Round::Records, 5);
        assert_eq!((own.len(), of(Round::Votes, 5).len()), (203, VOTE));
        assert!(content.is(Round::Records, 5, &own));
        assert!(!content.is(Round::Records, 6, &own) && !content.is(Round::Votes, 5, &own));
        assert!(!Content::new(8, 203).is(Round::Records, 5, &own));
        for index in [0, 100, 202] {
            let mut other = own.clone();
            other[index] ^= 1;
            assert!(!content.is(Round::Records, 5, &other), "{index}");
        }
        let both = [own.clone(), of(Round::Records, 9)].concat();
        assert!(content.are(Round::Records, [5, 9].into_iter(), &both));
        for ranks in [&[5][..], &[9, 5], &[5, 9, 9]] {
            assert!(!content.are(Round::Records, ranks.iter().copied(), &both), "{ranks:?}");
        }
    }

    #[test]
    fn keys_differ() {
        let content = Content::new(7, 8);
        let keys = [
            content.token_key(),
            content.slot_key(Round::Records, 1, 2),
            content.slot_key(Round::Votes, 1, 2),
            content.slot_key(Round::Records, 12, 2),
            Content::new(8, 8).slot_key(Round::Records, 1, 2),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{key}");
        }
        assert_ne!(content.token(1), content.token(2));
        let is_token = |text: &str| content.is_token(text.as_bytes());
        assert!(is_token(&content.token(1)) && !is_token(&content.token(1)[1..]));
        assert!(!is_token(&Content::new(8, 8).token(1)));
    }
}
