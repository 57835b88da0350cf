//! Processes.
#![allow(clippy::unwrap_used, missing_docs)]
use symmem::prelude::*;

fn child() {
    let t = std::time::Instant::now();
    let group = Group::from_env().unwrap();
    let t1 = t.elapsed();
    let n = group.size();
    let me = group.rank().index();
    let stream = group.lane().unwrap().default_stream().clone();
    let x = Tensor::<f32>::zeros(group.device(), &[1000]).unwrap();
    let h = group.rendezvous(&x, &group.wait()).unwrap();
    let t2 = t.elapsed();
    x.write(&vec![me as f32; 1000]).unwrap();
    group.barrier(Channel(0)).on(&stream).unwrap();
    for r in group.ranks() {
        let v: Tensor<f32> = h.remote(r).unwrap().try_into().unwrap();
        assert_eq!(v.to_vec().unwrap()[7], r.index() as f32);
    }
    let mode = std::env::var("MODE").unwrap();
    for i in 0..1000 {
        if mode == "kill" && i == 500 && me == n - 1 {
            rustix_kill();
        }
        let y = Tensor::<f32>::zeros(group.device(), &[1000]).unwrap();
        let t = std::time::Instant::now();
        let r = group.all_reduce(&x).into(&y).run();
        if mode == "kill" && i >= 500 {
            println!(
                "rank {me} i {i}: {:?} after {:?}",
                r.as_ref().unwrap_err().to_string(),
                t.elapsed()
            );
            return;
        }
        r.unwrap();
        assert_eq!(y.to_vec().unwrap()[3], (0..n).sum::<usize>() as f32);
    }
    println!("rank {me} ok join {t1:?} rdv {:?}", t2 - t1);
}

fn rustix_kill() {
    std::process::Command::new("kill")
        .arg("-9")
        .arg(std::process::id().to_string())
        .status()
        .unwrap();
}

fn main() {
    if std::env::var_os("RANK").is_some() {
        return child();
    }
    for (n, mode) in [(1, "ok"), (2, "ok"), (3, "ok"), (8, "ok"), (3, "kill"), (4, "kill")] {
        let mut job = symmem::launch::Processes::new(std::env::current_exe().unwrap(), n)
            .env("MODE", mode)
            .spawn()
            .unwrap();
        let all = job.wait(&Wait::seconds(60)).unwrap();
        println!("{n} {mode}: {all:?} requests {:?}", job.store().stats());
    }
}
