//! Words of a machine with store buffers, and a random scheduler for programs on them.
//!
//! Every actor has a buffer of its stores, from which they reach memory at random times: in any
//! order for different words, in program order for one word; a release store only after all
//! stores before it. That is weaker than TSO, and like it in that all see memory alike. A load
//! takes the actor's own latest store, else memory. Loads are not reordered; loom's models do
//! that.
//!
//! The simulation is of one thread: actors are futures, polled in an order that the seed decides.

use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::world::Machine;
use crate::protocol::Word;

/// Numbers that look random and follow from a seed (SplitMix64).
#[derive(Clone, Debug, Default)]
pub(super) struct Random(u64);

impl Random {
    pub const fn seeded(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

#[derive(Clone, Copy)]
struct Store {
    word: usize,
    value: u64,
    release: bool,
}

#[derive(Default)]
struct Memory {
    words: Vec<u64>,
    buffers: Vec<Vec<Store>>,
    actor: usize,
    random: Random,
}

impl Memory {
    /// Lets a store of `actor` reach memory, if it has any.
    fn drain_one(&mut self, actor: usize) {
        let buffer = &mut self.buffers[actor];
        if buffer.is_empty() {
            return;
        }
        let chosen = (self.random.next() % buffer.len() as u64) as usize;
        let Store { word, release, .. } = buffer[chosen];
        let overtakes = release || buffer[..chosen].iter().any(|earlier| earlier.word == word);
        let store = buffer.remove(if overtakes { 0 } else { chosen });
        self.words[store.word] = store.value;
    }

    fn drain(&mut self, actor: usize) {
        for store in std::mem::take(&mut self.buffers[actor]) {
            self.words[store.word] = store.value;
        }
    }

    /// Before every access: some store of somebody may become visible.
    fn shuffle(&mut self) {
        if self.random.once_in(3) {
            let actor = self.random.below(self.buffers.len());
            self.drain_one(actor);
        }
    }

    fn load(&mut self, word: usize) -> u64 {
        self.shuffle();
        let own = self.buffers[self.actor].iter().rev().find(|store| store.word == word);
        own.map_or(self.words[word], |store| store.value)
    }

    fn store(&mut self, word: usize, value: u64, release: bool) {
        self.shuffle();
        self.buffers[self.actor].push(Store { word, value, release });
    }

    fn update(&mut self, word: usize, update: impl FnOnce(u64) -> u64) -> u64 {
        self.shuffle();
        self.drain(self.actor);
        let old = self.words[word];
        self.words[word] = update(old);
        old
    }
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Memory) -> T) -> T {
    MEMORY.with_borrow_mut(f)
}

/// A word of the simulated memory.
pub(super) struct SimWord<V> {
    word: usize,
    value: PhantomData<V>,
}

impl<V> SimWord<V> {
    fn new() -> Self {
        let word = with(|memory| {
            memory.words.push(0);
            memory.words.len() - 1
        });
        SimWord { word, value: PhantomData }
    }
}

macro_rules! sim_word {
    ($($value:ty),*) => {$(
        impl Word for SimWord<$value> {
            type Value = $value;

            fn load_acquire(&self) -> $value {
                self.load_relaxed()
            }

            fn load_relaxed(&self) -> $value {
                with(|memory| memory.load(self.word)) as $value
            }

            fn store_release(&self, value: $value) {
                with(|memory| memory.store(self.word, u64::from(value), true));
            }

            fn store_relaxed(&self, value: $value) {
                with(|memory| memory.store(self.word, u64::from(value), false));
            }

            fn compare_exchange(&self, current: $value, new: $value) -> Result<$value, $value> {
                let swap = |old| if old == u64::from(current) { u64::from(new) } else { old };
                let old = with(|memory| memory.update(self.word, swap)) as $value;
                if old == current { Ok(old) } else { Err(old) }
            }

            fn fetch_or(&self, bits: $value) -> $value {
                with(|memory| memory.update(self.word, |old| old | u64::from(bits))) as $value
            }
        }
    )*};
}

sim_word!(u32, u64);

/// The simulated machine.
pub(super) struct Sim;

impl Machine for Sim {
    type Word32 = SimWord<u32>;
    type Word64 = SimWord<u64>;
    type Cell = SimWord<u64>;
    const PREEMPT: bool = true;

    fn word32() -> SimWord<u32> {
        SimWord::new()
    }

    fn word64() -> SimWord<u64> {
        SimWord::new()
    }

    fn cell() -> SimWord<u64> {
        SimWord::new()
    }

    fn write(cell: &SimWord<u64>, value: u64) {
        cell.store_relaxed(value);
    }

    fn read(cell: &SimWord<u64>) -> u64 {
        cell.load_relaxed()
    }
}

/// Says which seed a panicking schedule had.
struct Tell(u64);

impl Drop for Tell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the schedule that failed: SYMMEM_SEED={}", self.0);
        }
    }
}

/// Runs `schedule` for each of `count` seeds, or only for `SYMMEM_SEED` where that is set.
pub(super) fn schedules(first: u64, count: u64, schedule: impl Fn(Random)) {
    let only = std::env::var("SYMMEM_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seeds = only.map_or(first..first + count, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let _tell = Tell(seed);
        let mut random = Random::seeded(seed);
        with(|memory| {
            memory.words.clear();
            memory.buffers.clear();
            // The actor that sets up; what it stores is drained before the others begin.
            memory.buffers.push(Vec::new());
            memory.actor = 0;
            memory.random = Random::seeded(random.next());
        });
        schedule(random);
    }
}

type Program<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Programs that run by turns until all have ended. Actor 0 sets up and is the watcher.
pub(super) struct Scheduler<'a, T> {
    actors: Vec<Actor<'a, T>>,
    random: Random,
    polls: usize,
}

enum Actor<'a, T> {
    Running(Program<'a, T>),
    Ended(T),
    Dead,
}

impl<'a, T> Scheduler<'a, T> {
    pub fn new(random: &mut Random) -> Self {
        Scheduler { actors: Vec::new(), random: Random::seeded(random.next()), polls: 0 }
    }

    pub fn spawn(&mut self, program: impl Future<Output = T> + 'a) {
        self.actors.push(Actor::Running(Box::pin(program)));
        with(|memory| memory.buffers.push(Vec::new()));
    }

    /// Ends a program where it is; what it stored becomes visible before this returns.
    pub fn kill(&mut self, actor: usize) {
        self.actors[actor] = Actor::Dead;
        with(|memory| memory.drain(actor + 1));
    }

    /// Runs to the end of every program, calling `watcher` before each turn, and returns what
    /// each came to, `None` for those killed.
    pub fn run(mut self, mut watcher: impl FnMut(&mut Self, &mut Random)) -> Vec<Option<T>> {
        with(|memory| memory.drain(0));
        let mut context = Context::from_waker(Waker::noop());
        let mut random = Random::seeded(self.random.next());
        let mut running: Vec<usize> = (0..self.actors.len()).collect();
        // Some schedules favour one actor for long stretches: others fall far behind.
        let stretch = self.random.pick(&[1, 1, 4, 30]);
        let mut chosen = 0;
        while !running.is_empty() {
            self.polls += 1;
            assert!(self.polls < 200_000, "a program does not end");
            with(|memory| memory.actor = 0);
            watcher(&mut self, &mut random);
            running.retain(|&actor| matches!(self.actors[actor], Actor::Running(_)));
            if running.is_empty() {
                break;
            }
            if self.random.once_in(stretch) {
                chosen = self.random.below(running.len());
            }
            let actor = running[chosen % running.len()];
            with(|memory| memory.actor = actor + 1);
            if let Actor::Running(program) = &mut self.actors[actor]
                && let Poll::Ready(end) = program.as_mut().poll(&mut context)
            {
                self.actors[actor] = Actor::Ended(end);
            }
        }
        with(|memory| (0..memory.buffers.len()).for_each(|actor| memory.drain(actor)));
        self.actors
            .into_iter()
            .map(|actor| if let Actor::Ended(end) = actor { Some(end) } else { None })
            .collect()
    }
}
