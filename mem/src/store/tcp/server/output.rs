//! What a connection is still to be sent.

use std::collections::VecDeque;
use std::sync::Arc;

/// A shared answer shorter than this is copied: a piece for itself would take more.
const SHORT: usize = 4 << 10;

/// Bytes in line, of which long ones that many connections are sent are shared.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// What comes before the end; none of it empty.
    pieces: VecDeque<Piece>,
    end: Vec<u8>,
    /// How much of what comes next is gone.
    written: usize,
}

#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(bytes) => bytes,
        }
    }
}

impl Output {
    /// The end of the line, to append to.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.end
    }

    pub fn share(&mut self, bytes: &Arc<[u8]>) {
        if bytes.len() < SHORT {
            self.end.extend_from_slice(bytes);
            return;
        }
        if !self.end.is_empty() {
            self.pieces.push_back(Piece::Own(std::mem::take(&mut self.end)));
        }
        self.pieces.push_back(Piece::Shared(bytes.clone()));
    }

    pub fn unwritten(&self) -> usize {
        let pieces = self.pieces.iter().map(|piece| piece.bytes().len());
        pieces.sum::<usize>() + self.end.len() - self.written
    }

    /// Memory that is held here and nowhere else.
    pub fn held(&self) -> usize {
        let own = |piece: &Piece| match piece {
            Piece::Own(bytes) => bytes.capacity(),
            Piece::Shared(_) => 0,
        };
        self.pieces.iter().map(own).sum::<usize>() + self.end.capacity()
    }

    /// What comes next; `None` where nothing does.
    pub fn next(&self) -> Option<&[u8]> {
        let next = self.pieces.front().map_or(&self.end[..], Piece::bytes);
        Some(&next[self.written..]).filter(|bytes| !bytes.is_empty())
    }

    /// Says that so many bytes of what comes next are gone. Keeps a buffer of `kept` bytes at the end.
    pub fn advance(&mut self, n: usize, kept: usize) {
        self.written += n;
        match self.pieces.front() {
            Some(piece) if piece.bytes().len() == self.written => {
                self.pieces.pop_front();
                self.written = 0;
            }
            None if self.end.len() == self.written => {
                self.end.clear();
                self.end.shrink_to(kept);
                self.written = 0;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn bytes_leave_in_order_whatever_they_are_held_by() {
        let mut output = Output::default();
        let long: Arc<[u8]> = (0..SHORT).map(|i| i as u8).collect();
        let mut expected = Vec::new();
        for i in 0..3 {
            // One that is empty, too.
            output.end().extend_from_slice(&vec![i; 3 * usize::from(i)]);
            output.share(&long);
            output.share(&long);
            output.share(&Arc::from(&b"short"[..]));
            expected.extend([&vec![i; 3 * usize::from(i)][..], &long, &long, b"short"].concat());
        }
        assert_eq!(output.unwritten(), expected.len());
        assert!(output.held() < 1000 && Arc::strong_count(&long) == 7);
        let mut found = Vec::new();
        while let Some(next) = output.next() {
            let n = next.len().min(1000);
            found.extend_from_slice(&next[..n]);
            output.advance(n, 16);
            assert_eq!(output.unwritten(), expected.len() - found.len());
        }
        assert!(found == expected && Arc::strong_count(&long) == 1);
        output.end().push(7);
        assert_eq!(output.next().unwrap(), [7]);
    }
}
