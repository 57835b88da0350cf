//! Smoke.
#![allow(clippy::unwrap_used, missing_docs)]
use symmem::prelude::*;

fn run(device: Device, n: usize, algorithm: Algorithm, count: u64, symmetric: bool) {
    let mut options = Options::default();
    options.workspace = Bytes::mib(2);
    options.deadline = std::time::Duration::from_secs(5);
    symmem::launch::Threads::new(n)
        .options(options)
        .devices(vec![device])
        .run(|group| {
            let stream = group.lane().unwrap().default_stream().clone();
            let x = Tensor::<f32>::zeros(group.device(), &[count]).unwrap();
            let y = Tensor::<f32>::zeros(group.device(), &[count]).unwrap();
            if symmetric {
                group.rendezvous(&x, &group.wait()).unwrap();
            }
            for round in 0..50 {
                let me = group.rank().index();
                let data: Vec<f32> =
                    (0..count).map(|i| (i % 100) as f32 + me as f32 + round as f32).collect();
                x.write(&data).unwrap();
                group.all_reduce(&x).into(&y).algorithm(algorithm).on(&stream).unwrap();
                stream.synchronize(&Wait::seconds(10)).unwrap();
                let got = y.to_vec().unwrap();
                for i in 0..count {
                    let want: f32 =
                        (0..n).map(|r| (i % 100) as f32 + r as f32 + round as f32).sum();
                    assert_eq!(got[i as usize], want, "rank {me} index {i} round {round}");
                }
                group.barrier(Channel(3)).on(&stream).unwrap();
                let next = group.rank_at((me + 1) % n).unwrap();
                let prev = group.rank_at((me + n - 1) % n).unwrap();
                group.put_signal(next, Channel(1)).on(&stream).unwrap();
                group.wait_signal(prev, Channel(1)).on(&stream).unwrap();
            }
            stream.synchronize(&Wait::seconds(10)).unwrap();
        })
        .unwrap();
}

#[test]
fn smoke() {
    for device in [Device::host(), Device::stub(0)] {
        for n in [1, 2, 3, 8] {
            for (algorithm, count) in [
                (Algorithm::Packet, 100),
                (Algorithm::OneShot, 1000),
                (Algorithm::TwoShot, 1000),
                (Algorithm::TwoShot, 300_000),
                (Algorithm::OneShot, 300_000),
            ] {
                for symmetric in [false, true] {
                    let t = std::time::Instant::now();
                    run(device.clone(), n, algorithm, count, symmetric);
                    println!(
                        "{:?} {n} {algorithm} {count} {symmetric} {:?}",
                        device.kind(),
                        t.elapsed()
                    );
                }
            }
        }
    }
}
