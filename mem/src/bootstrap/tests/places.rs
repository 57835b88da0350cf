//! Where the store is, and the run of one host's ranks.

use std::collections::HashSet;

use super::super::place::PORTS;
use super::super::*;
use super::captured::*;

fn port(rank: &Rank) -> u16 {
    rank.read().unwrap().store.port
}

#[test]
fn a_port_of_a_runs_name() {
    // The same for all ranks, whichever library made it: a change would part two versions of a program.
    assert_eq!(port(&Rank::of(SRUN)), port(&Rank::of(SRUN).with("SLURM_PROCID=0 SLURM_NODEID=0")));
    assert_eq!(port(&Rank::of(SRUN)), 29276);
    // Another for most other runs.
    let mut ports = HashSet::new();
    for job in 0..1000 {
        let port = port(&Rank::of(SRUN).with(&format!("SLURM_JOB_ID={job}")));
        assert!(PORTS.contains(&port), "{port}");
        ports.insert(port);
    }
    assert!(ports.len() > 900, "{} of 1000", ports.len());
    assert_ne!(port(&Rank::of(SRUN)), port(&Rank::of(SRUN).with("SLURM_STEP_ID=1")));
    assert_ne!(port(&Rank::of(SRUN)), port(&Rank::of(SRUN).with("SLURM_RESTART_COUNT=1")));
    // Two jobs of Open MPI's whose numbers are equal.
    let other = "OMPI_MCA_orte_precondition_transports=8d2498ccc669ecbf-7bf1d85124b7d3dc";
    assert_ne!(port(&Rank::of(OPEN_MPI)), port(&Rank::of(OPEN_MPI).with(other)));
    // No other program is given such a port by the system.
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    assert!(first < 32_768 || PORTS.end <= first, "{range}");
}

#[test]
fn an_address_that_is_given() {
    for rank in [OPEN_MPI, MPICH, SRUN] {
        let store = Rank::of(rank).with("MASTER_ADDR=::1 MASTER_PORT=5").read().unwrap().store;
        assert_eq!(store.to_string(), "[::1]:5");
    }
    // Of `symmem store`; an address that is not whole is none of its.
    for (address, host) in [
        ("MASTER_ADDR=n9 MASTER_PORT=5", StoreHost::Launcher),
        ("MASTER_ADDR=n9", StoreHost::RankZero),
        ("MASTER_PORT=5", StoreHost::RankZero),
    ] {
        let rank = Rank::of(SRUN).with("TORCHELASTIC_USE_AGENT_STORE=True").with(address);
        assert_eq!(rank.read().unwrap().host, host, "{address}");
    }
    assert!(matches!(
        Rank::of(SRUN).with("MASTER_PORT=0").read(),
        Err(EnvError::Invalid { variable: "MASTER_PORT", .. })
    ));
    // Rank 0 where the list's first host is not.
    let elsewhere = "SLURM_PROCID=0 SLURM_NODEID=1";
    match Rank::of(SRUN).with(elsewhere).read() {
        Err(error @ EnvError::NoAddress { world_size: 3, local_world_size: Some(1), .. }) => {
            assert!(error.to_string().contains("set MASTER_ADDR"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(Rank::of(SRUN).with(elsewhere).with("MASTER_ADDR=n2").read().is_ok());
    assert!(matches!(
        Rank::of(SRUN).with("SLURM_STEP_NODELIST=").read(),
        Err(EnvError::NoAddress { .. })
    ));
    // An address alone is what is left of somebody's variables.
    assert!(matches!(
        Rank::of("MASTER_ADDR=n1").read(),
        Err(EnvError::Missing { variable: "RANK", .. })
    ));
}

#[test]
fn the_ranks_of_one_host() {
    let all = Rank::of(TORCHRUN).read().unwrap();
    let here = all.on_this_host().unwrap();
    let expected = Bootstrap {
        rank: 1,
        world_size: 4,
        node: Some(0),
        nodes: Some(1),
        run: RunId { launcher: Some("job-7.host1".into()), restart: 0 },
        ..all.clone()
    };
    assert_eq!(here, expected);
    assert_eq!(here.on_this_host(), Ok(here.clone()), "it is on one host");

    // Without a store of the launcher's, one on each host.
    let all = Rank::of(SRUN).read().unwrap();
    let here = all.on_this_host().unwrap();
    assert_eq!((here.rank, here.world_size, here.host), (0, 1, StoreHost::RankZero));
    assert_eq!(here.run.launcher.as_deref(), Some("slurm-1.0.host1"));
    assert_eq!(here.store.host, "127.0.0.1");
    let other = Rank::of(SRUN).with("SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0");
    let other = other.read().unwrap().on_this_host().unwrap();
    assert_eq!((other.rank, other.world_size), (1, 2));
    assert_ne!(other.run, here.run);
    // Several of a machine's may be one host's.
    assert_ne!(other.store, here.store);
    // Rank 0 of all serves at another port than the first of this host.
    let taken = Bootstrap { store: here.store.clone(), ..all.clone() };
    assert_ne!(taken.on_this_host().unwrap().store.port, here.store.port);

    // Runs without a name, by their stores.
    let unnamed = |port: &str| {
        let rank =
            Rank::of(TORCHRUN).with("TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=");
        rank.with(port).read().unwrap().on_this_host().unwrap()
    };
    let (a, b) = (unnamed("MASTER_PORT=1000"), unnamed("MASTER_PORT=1001"));
    assert_eq!(a.run.launcher.as_deref(), Some("n1:1000.host1"));
    assert_ne!(a.store, b.store);
}

#[test]
fn a_host_that_is_not_known() {
    let all = Rank::of(TORCHRUN).read().unwrap();
    let without = [
        Bootstrap { local_rank: None, ..all.clone() },
        Bootstrap { local_world_size: None, ..all.clone() },
        Bootstrap { node: None, ..all },
        Rank::of(OPEN_MPI_UNDER_SLURM).with("MASTER_ADDR=n1").read().unwrap(),
    ];
    let whys = ["rank on its host", "number of ranks", "index", "index"];
    for (bootstrap, why) in without.into_iter().zip(whys) {
        match bootstrap.on_this_host() {
            Err(EnvError::NoHost { launcher, unknown }) => {
                assert!(unknown.contains(why), "{unknown}");
                assert_eq!(launcher, bootstrap.launcher);
            }
            other => panic!("{other:?}"),
        }
    }
    // One host needs no index.
    let one = Rank::of(OPEN_MPI).read().unwrap();
    assert_eq!(one.on_this_host(), Ok(one.clone()));
}
