//! Rounds of ranks that are threads here, each with a meeting point of its host.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::net::Ipv4Addr;
use std::thread;

use symmem_hal::CancelToken;

use super::*;
use crate::exchange::token::Token;
use crate::exchange::unix::OnLead;
use crate::liveness::Register;
use crate::store::tcp::tests::proxy::Proxy;
use crate::store::tcp::{StoreServer, TcpStore};
use crate::store::{LocalStore, PrefixStore};

/// Which ranks a launcher started together, and where: `(host, node, ranks)`.
type Started<'a> = &'a [(&'a str, u32, &'a [u32])];

/// Two hosts, whose ranks are not in order.
const TWO: Started<'static> = &[("a", 0, &[0, 3]), ("b", 1, &[2, 1, 4])];

struct Run {
    name: String,
    token: Token,
}

impl Run {
    fn new() -> Self {
        let token = Token::fresh().unwrap();
        Run { name: crate::exchange::token::run_name(&token), token }
    }

    fn join(&self, store: &Arc<dyn Store>, started: Started<'_>, rank: u32) -> HostsExchange {
        let (host, node, ranks) =
            *started.iter().find(|(_, _, ranks)| ranks.contains(&rank)).unwrap();
        let links = Arc::new(Links::new(Arc::new(Register::default())).unwrap());
        let on_lead = OnLead { announce: Arc::new(|| {}), hosts: Arc::new(Vec::new) };
        let (token, name) = (self.token.clone(), format!("{}/{host}", self.name));
        let near = UnixExchange::new(name, 0, token.clone(), links.clone(), on_lead);
        let door = Door::open(Ipv4Addr::LOCALHOST.into(), token, rank, links.clone()).unwrap();
        let local_rank = ranks.iter().position(|r| *r == rank).unwrap() as u32;
        let unit = Unit { local_rank, local_size: ranks.len() as u32, node };
        HostsExchange::new(near, store.clone(), links, door, (rank, unit), host.to_owned())
    }
}

/// What each of these ranks gets, in their order.
fn each<T: Send>(
    store: impl Fn() -> Arc<dyn Store> + Sync,
    started: Started<'_>,
    ranks: &[u32],
    act: impl Fn(&HostsExchange, u32) -> T + Sync,
) -> Vec<T> {
    let (run, act, store) = (&Run::new(), &act, &store);
    thread::scope(|scope| {
        let start = |rank: &u32| {
            let rank = *rank;
            scope.spawn(move || act(&run.join(&store(), started, rank), rank))
        };
        let threads: Vec<_> = ranks.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The same for all.
fn one(store: Arc<dyn Store>) -> impl Fn() -> Arc<dyn Store> + Sync {
    move || store.clone()
}

fn local() -> Arc<dyn Store> {
    Arc::new(LocalStore::new())
}

/// A server that knows no gather, as its clients see it.
struct Foreign(Proxy, #[expect(dead_code, reason = "ends with it")] StoreServer);

impl Foreign {
    fn new() -> Self {
        let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Foreign(Proxy::new(server.local_addr(), Vec::new(), true), server)
    }

    /// A client of its own, as each process has.
    fn connect(&self) -> Arc<dyn Store> {
        Arc::new(TcpStore::connect("127.0.0.1", self.0.port(), &Wait::seconds(10)).unwrap())
    }
}

/// A namespace of its own.
fn apart(store: Arc<dyn Store>, number: u32) -> Arc<dyn Store> {
    Arc::new(PrefixStore::new(store, format!("{number}")))
}

fn key(number: u64) -> RoundKey {
    RoundKey { group: 7, generation: 0, number, part: 0 }
}

fn round<'a>(members: &'a [u32], rank: u32, number: u64, payload: Vec<u8>) -> Round<'a> {
    let me = members.iter().position(|member| *member == rank).unwrap();
    Round { key: key(number), members, me, links: true, part: Part::plain(payload) }
}

fn gather(
    exchange: &HostsExchange,
    members: &[u32],
    rank: u32,
    number: u64,
    wait: &Wait,
) -> Result<Vec<Vec<u8>>, ExchangeError> {
    let payload = vec![rank as u8, number as u8];
    let parts = exchange.gather(round(members, rank, number, payload), wait)?;
    Ok(parts.into_iter().map(|part| part.payload).collect())
}

fn expected(members: &[u32], number: u64) -> Vec<Vec<u8>> {
    members.iter().map(|member| vec![*member as u8, number as u8]).collect()
}

const ALL: [u32; 5] = [0, 1, 2, 3, 4];

#[test]
fn rounds_of_all_of_some_and_of_one_host() {
    let server = StoreServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let clients: Vec<TcpStore> = ALL
        .iter()
        .map(|_| {
            TcpStore::connect("127.0.0.1", server.local_addr().port(), &Wait::seconds(10)).unwrap()
        })
        .collect();
    let run = Run::new();
    thread::scope(|scope| {
        for rank in ALL {
            let store: Arc<dyn Store> =
                Arc::new(PrefixStore::new(Arc::new(clients[rank as usize].clone()), "run"));
            let run = &run;
            scope.spawn(move || {
                let exchange = run.join(&store, TWO, rank);
                let wait = Wait::seconds(30);
                let all = |number| gather(&exchange, &ALL, rank, number, &wait).unwrap();
                assert_eq!(all(1), expected(&ALL, 1));
                let mut linked = exchange.links.peers();
                linked.sort_unstable();
                assert_eq!(linked, ALL.into_iter().filter(|r| *r != rank).collect::<Vec<_>>());
                assert_eq!(all(2), expected(&ALL, 2));
                assert!(exchange.has_hosts());
                let near: Vec<u32> = ALL.into_iter().filter(|r| exchange.is_near(*r)).collect();
                assert_eq!(near, if [0, 3].contains(&rank) { vec![0, 3] } else { vec![1, 2, 4] });
                // In another order, of some of both hosts, and of one.
                for some in [&[4, 0, 2][..], &[3, 0], &[1, 4, 2], &[3]] {
                    if some.contains(&rank) {
                        let key = RoundKey { group: 100 + u64::from(some[0]), ..key(1) };
                        let round = Round { key, ..round(some, rank, 1, vec![rank as u8]) };
                        let parts = exchange.gather(round, &wait).unwrap();
                        assert!(
                            parts.iter().map(|p| u32::from(p.payload[0])).eq(some.iter().copied())
                        );
                    }
                }
                // More than fits in one frame.
                let large = vec![rank as u8; 60 << 10];
                let parts = exchange.gather(round(&ALL, rank, 3, large), &wait).unwrap();
                for (part, from) in parts.iter().zip(ALL) {
                    assert!(
                        part.payload.len() == 60 << 10
                            && part.payload.iter().all(|b| *b == from as u8)
                    );
                }
            });
        }
    });
    // A host has one who speaks for it: in four rounds of all or of both hosts, once each.
    let requests: Vec<u64> = clients.iter().map(|client| client.traffic().requests).collect();
    assert_eq!(requests, [4, 3, 0, 0, 1], "of the first of each host, in each group's order");
}

#[test]
fn two_of_a_launchers_hosts_may_be_one() {
    let started: Started<'_> = &[("a", 0, &[0, 1]), ("a", 1, &[2, 3]), ("b", 2, &[4])];
    let found = each(one(local()), started, &ALL, |exchange, rank| {
        let wait = Wait::seconds(30);
        let first = gather(exchange, &ALL, rank, 1, &wait).unwrap();
        let near = ALL.into_iter().filter(|r| exchange.is_near(*r)).count();
        (first, gather(exchange, &ALL, rank, 2, &wait).unwrap(), near)
    });
    for (rank, (first, second, near)) in found.into_iter().enumerate() {
        assert_eq!((first, second), (expected(&ALL, 1), expected(&ALL, 2)));
        assert_eq!(near, if rank == 4 { 1 } else { 4 }, "rank {rank}");
    }
}

#[test]
fn descriptors_stay_on_their_host_and_fabric_handles_leave_it() {
    use symmem_hal::Shareable;

    let found = each(one(local()), TWO, &ALL, |exchange, rank| {
        let mut seen = Vec::new();
        for number in 1..=2 {
            let file = tempfile::tempfile().unwrap();
            std::os::unix::fs::FileExt::write_at(&file, &[rank as u8], 0).unwrap();
            let part = Part {
                payload: Vec::new(),
                handles: vec![Handle::Shared(Shareable::Fd(file.into()))],
                fabric: vec![Handle::Shared(Shareable::Fabric([rank as u8; 64]))],
            };
            let round = Round { part, ..round(&ALL, rank, number, Vec::new()) };
            let parts = exchange.gather(round, &Wait::seconds(30)).unwrap();
            for (from, part) in ALL.into_iter().zip(parts) {
                let sort = match (part.handles.first(), part.fabric.first()) {
                    (Some(Handle::Shared(Shareable::Fd(fd))), None) => {
                        let mut byte = [0];
                        rustix::io::pread(fd, &mut byte, 0).unwrap();
                        assert_eq!(u32::from(byte[0]), from);
                        "descriptor"
                    }
                    (None, Some(Handle::Shared(Shareable::Fabric(bytes)))) => {
                        assert_eq!(bytes, &[from as u8; 64]);
                        "fabric"
                    }
                    _ => "none",
                };
                seen.push((from, sort));
            }
        }
        seen
    });
    for (rank, seen) in ALL.into_iter().zip(found) {
        for (from, sort) in seen {
            let near = [0, 3].contains(&rank) == [0, 3].contains(&from);
            let wanted = if from == rank {
                "none"
            } else if near {
                "descriptor"
            } else {
                "fabric"
            };
            assert_eq!(sort, wanted, "of rank {from} on rank {rank}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_on_all_hosts() {
    a_rank_is_missing(one(local()));
    let foreign = Foreign::new();
    a_rank_is_missing(|| foreign.connect());
}

fn a_rank_is_missing(store: impl Fn() -> Arc<dyn Store> + Sync) {
    // Before the hosts know each other, and after; of the host's first ranks, or not.
    for missing in [1, 2, 3] {
        let there: Vec<u32> = ALL.into_iter().filter(|rank| *rank != missing).collect();
        let found = each(
            || apart(store(), missing),
            TWO,
            &there,
            |exchange, rank| gather(exchange, &ALL, rank, 1, &Wait::millis(800)),
        );
        for (rank, found) in there.iter().zip(found) {
            let Err(ExchangeError::Missing { missing: named, .. }) = &found else {
                panic!("rank {rank}: {found:?}")
            };
            assert_eq!(*named, [missing], "on rank {rank}");
        }
        let found = each(
            || apart(store(), 10 + missing),
            TWO,
            &ALL,
            |exchange, rank| {
                gather(exchange, &ALL, rank, 1, &Wait::seconds(30)).unwrap();
                if rank == missing {
                    // There, but in no round.
                    thread::sleep(Duration::from_secs(2));
                    return None;
                }
                let found = gather(exchange, &ALL, rank, 2, &Wait::millis(800));
                // It comes back: the next round is one of all again.
                thread::sleep(Duration::from_secs(1));
                Some(found)
            },
        );
        for (rank, found) in ALL.into_iter().zip(found).filter(|(_, found)| found.is_some()) {
            let found = found.unwrap();
            assert!(
                matches!(&found, Err(ExchangeError::Missing { missing: named, .. }) if *named == [missing]),
                "rank {rank}: {found:?}"
            );
        }
    }
}

/// Else the second one's failure would be taken for that of the next round.
#[test]
fn members_of_a_host_whose_bounds_differ_tell_one_failure() {
    let foreign = Foreign::new();
    let native: Arc<dyn Store> = Arc::new(LocalStore::new());
    for (number, store) in [(1, native), (2, foreign.connect())] {
        let store = || apart(store.clone(), number);
        let found = each(store, TWO, &ALL, |exchange, rank| {
            gather(exchange, &ALL, rank, 1, &Wait::seconds(30)).unwrap();
            if rank == 4 {
                thread::sleep(Duration::from_secs(2));
            } else {
                let wait = Wait::millis(900 + u64::from(rank));
                let missed = gather(exchange, &ALL, rank, 2, &wait);
                let allowed = wait.duration();
                let is_told = matches!(&missed, Err(ExchangeError::Missing { missing, allowed: told, .. })
                    if *missing == [4] && *told == allowed);
                assert!(is_told, "rank {rank}: {missed:?}");
                thread::sleep(Duration::from_secs(1));
            }
            [3, 4].map(|number| gather(exchange, &ALL, rank, number, &Wait::seconds(10)))
        });
        for (rank, found) in found.into_iter().enumerate() {
            assert_eq!(found, [3, 4].map(|number| Ok(expected(&ALL, number))), "rank {rank}");
        }
    }
}

#[test]
fn after_a_round_in_vain_all_meet_again() {
    all_meet_again(one(local()));
    let foreign = Foreign::new();
    all_meet_again(|| foreign.connect());
}

fn all_meet_again(store: impl Fn() -> Arc<dyn Store> + Sync) {
    const MISSED: usize = 3;
    let found = each(store, TWO, &ALL, |exchange, rank| {
        let wait = Wait::seconds(30);
        gather(exchange, &ALL, rank, 1, &wait).unwrap();
        // A whole host misses some rounds, and comes to the next one.
        let mut vain = Vec::new();
        if [0, 3].contains(&rank) {
            thread::sleep(Duration::from_millis(2500));
        } else {
            vain.extend((0..MISSED).map(|_| gather(exchange, &ALL, rank, 2, &Wait::millis(500))));
        }
        (vain, gather(exchange, &ALL, rank, 3, &wait))
    });
    for (rank, (vain, again)) in found.into_iter().enumerate() {
        for vain in vain {
            let told =
                matches!(&vain, Err(ExchangeError::Missing { missing, .. }) if *missing == [0, 3]);
            assert!(told, "rank {rank}: {vain:?}");
        }
        assert_eq!(again, Ok(expected(&ALL, 3)), "rank {rank}");
    }
}

#[test]
fn a_run_that_is_joined_again_meets_behind_the_first() {
    let foreign = Foreign::new();
    let native = local();
    for round in 0..3 {
        for is_foreign in [false, true] {
            let store = || if is_foreign { foreign.connect() } else { native.clone() };
            let there: Vec<u32> = ALL.into_iter().filter(|rank| *rank != 4 || round != 1).collect();
            let found = each(store, TWO, &there, |exchange, rank| {
                gather(
                    exchange,
                    &ALL,
                    rank,
                    1,
                    &Wait::millis(if round == 1 { 600 } else { 30_000 }),
                )
            });
            let is_as_expected = |found: &Result<_, _>| match round {
                1 => found.is_err(),
                _ => *found == Ok(expected(&ALL, 1)),
            };
            assert!(found.iter().all(is_as_expected), "{round}, {is_foreign}: {found:?}");
        }
    }
}

#[test]
fn one_who_gives_up_ends_the_round_for_all_hosts() {
    for giving_up in [0, 1, 3] {
        let found = each(one(local()), TWO, &ALL, |exchange, rank| {
            gather(exchange, &ALL, rank, 1, &Wait::seconds(30)).unwrap();
            let token = CancelToken::new();
            if rank == giving_up {
                let token = token.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(100));
                    token.cancel();
                });
            } else if rank == 4 {
                // Else there would be nothing to give up.
                thread::sleep(Duration::from_millis(600));
            }
            // Who comes once its host has given up waits for a new round, for as long as it may.
            let wait = if rank == 4 { Wait::seconds(2) } else { Wait::seconds(30) };
            let started = Instant::now();
            let found = gather(exchange, &ALL, rank, 2, &wait.with_cancel(token));
            assert!(started.elapsed() < Duration::from_secs(20), "rank {rank}");
            found
        });
        for (rank, found) in found.into_iter().enumerate() {
            let told = match found {
                Err(ExchangeError::Cancelled) => true,
                // That host comes once the others have given up, and waits for them as for a new round.
                Err(ExchangeError::Missing { .. } | ExchangeError::Lost { .. }) => {
                    [1, 2, 4].contains(&rank)
                }
                _ => false,
            };
            assert!(told, "rank {rank}, of {giving_up}: {found:?}");
        }
    }
}

#[test]
fn two_that_claim_one_rank_are_told() {
    let store = local();
    let run = Run::new();
    let started: Started<'_> = &[("a", 0, &[0]), ("b", 1, &[1]), ("c", 2, &[2])];
    let claims: Started<'_> = &[("a", 0, &[0]), ("b", 1, &[1]), ("c", 2, &[1])];
    let found: Vec<_> = thread::scope(|scope| {
        let (store, run) = (&store, &run);
        let join = |started, rank| {
            scope.spawn(move || {
                let exchange = run.join(store, started, rank);
                gather(&exchange, &[0, 1, 2], rank, 1, &Wait::millis(900))
            })
        };
        let third = scope.spawn(move || {
            let mut exchange = run.join(store, &claims[2..], 1);
            exchange.unit.node = 2;
            gather(&exchange, &[0, 1, 2], 1, 1, &Wait::millis(900))
        });
        [join(started, 0), join(started, 1), third].map(|t| t.join().unwrap()).into()
    });
    assert!(found.iter().all(Result::is_err), "{found:?}");
    let told = |found: &Result<_, ExchangeError>| {
        matches!(found, Err(ExchangeError::Duplicate { rank: 1 }))
    };
    assert!(found.iter().any(told), "{found:?}");
}
