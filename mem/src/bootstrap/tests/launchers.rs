//! Every launcher by itself, one inside another, and two that cannot both be right.

use super::super::*;
use super::captured::*;

/// Rank and size, and what started it.
fn who(rank: &Rank) -> Result<(Launcher, usize, usize), EnvError> {
    rank.read_under(Some("hydra-11114-66044")).map(|b| (b.launcher, b.rank, b.world_size))
}

const STORE: &str = "MASTER_ADDR=n1 MASTER_PORT=29400";

#[test]
fn open_mpi_on_one_host() {
    let found = Rank::of(OPEN_MPI).read().unwrap();
    let expected = Bootstrap {
        rank: 1,
        world_size: 2,
        local_rank: Some(1),
        local_world_size: Some(2),
        node: Some(0),
        nodes: Some(1),
        launcher: Launcher::OpenMpi,
        run: RunId { launcher: Some("openmpi-1927872513-be8a63da".into()), restart: 0 },
        store: found.store.clone(),
        host: StoreHost::RankZero,
    };
    assert_eq!(found, expected);
    assert_eq!(found.store.host, "127.0.0.1");
    let five = "OMPI_MCA_ess_base_jobid= OMPI_MCA_orte_precondition_transports=
        PMIX_NAMESPACE=prterun-n1-4711@1";
    let found = Rank::of(OPEN_MPI).with(five).read().unwrap();
    assert_eq!(found.run.launcher.as_deref(), Some("openmpi-prterun-n1-4711@1"));
}

#[test]
fn mpich_on_one_host() {
    let rank = Rank::of(MPICH);
    let found = rank.read_under(Some("hydra-11114-66044")).unwrap();
    let expected = Bootstrap {
        rank: 1,
        world_size: 2,
        local_rank: Some(1),
        local_world_size: Some(2),
        node: Some(0),
        nodes: Some(1),
        launcher: Launcher::Hydra,
        run: RunId { launcher: Some("hydra-11114-66044".into()), restart: 0 },
        store: found.store.clone(),
        host: StoreHost::RankZero,
    };
    assert_eq!(found, expected);
    assert_eq!(found.store.host, "127.0.0.1");
    assert_eq!(rank.read(), Err(EnvError::NoPort { launcher: Launcher::Hydra }));
    let found = rank.with("MASTER_PORT=7").read().unwrap();
    assert_eq!((found.store.to_string().as_str(), found.run.launcher), ("127.0.0.1:7", None));
    // Intel MPI has no descriptor of Hydra's.
    assert!(rank.with("HYDI_CONTROL_FD=").read_under(Some("x")).is_ok());
    match Rank::of(MPICH_BY_PORT).read() {
        Err(EnvError::Missing { variable: "PMI_SIZE", present, .. }) => {
            assert_eq!(present, ["PMI_ID"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_step_of_slurm() {
    let found = Rank::of(SRUN).read().unwrap();
    let expected = Bootstrap {
        rank: 2,
        world_size: 3,
        local_rank: Some(0),
        local_world_size: Some(1),
        node: Some(1),
        nodes: Some(2),
        launcher: Launcher::Slurm,
        run: RunId { launcher: Some("slurm-1.0".into()), restart: 0 },
        store: found.store.clone(),
        host: StoreHost::RankZero,
    };
    assert_eq!(found, expected);
    assert_eq!(found.store.host, "n1");
    let first = Rank::of(SRUN).with("SLURM_PROCID=0 SLURM_NODEID=0").read().unwrap();
    assert_eq!((first.store, first.local_world_size), (found.store.clone(), Some(2)));
    // A requeued job's steps begin at 0 again.
    let again = Rank::of(SRUN).with("SLURM_RESTART_COUNT=1").read().unwrap();
    assert_eq!(again.run, RunId { restart: 1, ..found.run });
    let found = Rank::of(SRUN_OF_ONE).read().unwrap();
    assert_eq!(
        (found.world_size, found.nodes, found.store.host.as_str()),
        (1, Some(1), "127.0.0.1")
    );
    // Its plugins' variables say the same.
    for plugin in [SRUN_PMI2, "PMIX_RANK=2 PMIX_NAMESPACE=slurm.pmix.1.0"] {
        let rank = Rank::of(SRUN).with(plugin);
        assert_eq!(who(&rank), Ok((Launcher::Slurm, 2, 3)), "{plugin}");
    }
}

#[test]
fn what_is_no_step_of_slurms() {
    for outside in [BATCH, SALLOC] {
        let rank = Rank::of(outside);
        assert_eq!(rank.read(), Err(EnvError::NotLaunched), "{outside}");
        for special in ["4294967290", "4294967291", "4294967292"] {
            let rank = rank.with(&format!("SLURM_STEP_ID={special}"));
            assert_eq!(rank.read(), Err(EnvError::NotLaunched), "{special}");
        }
        assert_eq!(who(&rank.with(OPEN_MPI)), Ok((Launcher::OpenMpi, 1, 2)));
        assert_eq!(who(&rank.with(MPICH)), Ok((Launcher::Hydra, 1, 2)));
        assert_eq!(who(&rank.with(TORCHRUN)), Ok((Launcher::Torchrun, 5, 8)));
        assert_eq!(
            who(&rank.with("RANK=1 WORLD_SIZE=2").with(STORE)),
            Ok((Launcher::Exported, 1, 2))
        );
    }
}

#[test]
fn mpi_under_slurm_is_not_the_step_of_its_daemons() {
    let rank = Rank::of(OPEN_MPI_UNDER_SLURM);
    let unknown =
        |launcher| EnvError::NoAddress { launcher, world_size: 4, local_world_size: Some(2) };
    assert_eq!(rank.read(), Err(unknown(Launcher::OpenMpi)));
    let found = rank.with("MASTER_ADDR=n1").read().unwrap();
    assert_eq!((found.rank, found.world_size, found.launcher), (3, 4, Launcher::OpenMpi));
    assert_eq!((found.local_rank, found.local_world_size), (Some(1), Some(2)));
    assert_eq!((found.node, found.nodes), (None, None), "those are the daemons'");

    let rank = Rank::of(MPICH_UNDER_SLURM);
    assert_eq!(rank.read_under(Some("hydra-1-2")), Err(unknown(Launcher::Hydra)));
    // Each host has a process of its own, so that none names the run.
    let no_port = Err(EnvError::NoPort { launcher: Launcher::Hydra });
    assert_eq!(rank.with("MASTER_ADDR=n1").read_under(Some("hydra-1-2")), no_port);
    assert_eq!(who(&rank.with(STORE)), Ok((Launcher::Hydra, 3, 4)));
    // The daemons' own PMI variables, or PMIx's, stay with the step.
    let daemons = "PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=3.2";
    let rank = Rank::of(OPEN_MPI_UNDER_SLURM).with(daemons).with(STORE);
    assert_eq!(who(&rank), Ok((Launcher::OpenMpi, 3, 4)));
}

#[test]
fn torchrun_inside_another_launcher() {
    let torchrun = Ok((Launcher::Torchrun, 5, 8));
    // An agent on each host, whatever the order in which agents got their numbers.
    let agents = [
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=0",
        "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
        "PMI_RANK=0 PMI_SIZE=2",
        "PMIX_RANK=0",
        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_NODEID=0",
        // A shell in the first task of an interactive step.
        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_ID=0 SLURM_NODEID=0",
    ];
    for outside in agents {
        let rank = Rank::of(TORCHRUN).with(outside);
        assert_eq!(who(&rank), torchrun, "{outside}");
        let found = rank.read().unwrap();
        assert_eq!((found.node, found.nodes), (Some(1), Some(2)));
        assert_eq!(found.run.launcher.as_deref(), Some("job-7"));
    }
    // One agent, and several of those runs.
    let one = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8 GROUP_RANK=0 GROUP_WORLD_SIZE=1";
    let rank = Rank::of(TORCHRUN).with(one).with("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3");
    assert_eq!(who(&rank), torchrun);
    let id = "TORCHELASTIC_RUN_ID=symmem-0123456789abcdef";
    assert_eq!(who(&rank.with(id)), Ok((Launcher::SymmemRun, 5, 8)));
}

#[test]
fn exported_by_a_script_inside_another_launcher() {
    // The same rank under PyTorch's names: each says what the other does not.
    let rank = Rank::of(OPEN_MPI).with("RANK=1 WORLD_SIZE=2 MASTER_ADDR=n7");
    let found = rank.read().unwrap();
    assert_eq!((found.launcher, found.local_rank), (Launcher::OpenMpi, Some(1)));
    assert_eq!(found.store.host, "n7");
    assert!(found.run.launcher.is_some());
    // Half of it.
    for part in ["RANK=1", "WORLD_SIZE=2"] {
        assert_eq!(who(&Rank::of(OPEN_MPI).with(part)), Ok((Launcher::OpenMpi, 1, 2)), "{part}");
    }
    let rank = Rank::of(SRUN).with("RANK=2 WORLD_SIZE=3").with(STORE);
    assert_eq!(who(&rank), Ok((Launcher::Slurm, 2, 3)));
    // Of a torchrun around mpirun, whose ranks have been given others.
    let rank = rank.with("GROUP_RANK=0 GROUP_WORLD_SIZE=1").read().unwrap();
    assert_eq!((rank.node, rank.nodes), (Some(1), Some(2)));
    // PMIx's variables have no size, another has.
    let rank = Rank::of("PMIX_RANK=1 RANK=1 WORLD_SIZE=2 PMIX_NAMESPACE=a").with(STORE);
    assert_eq!(who(&rank), Ok((Launcher::Pmix, 1, 2)));
    // Each task starts four.
    let task = Rank::of("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0").with(STORE);
    for rank in 0..16 {
        let rank_of_16 = task.with(&format!("RANK={rank} WORLD_SIZE=16"));
        let expected = (4..8).contains(&rank).then_some((Launcher::Exported, rank, 16));
        assert_eq!(who(&rank_of_16).ok(), expected, "{rank}");
    }
}

#[test]
fn two_launchers_that_differ() {
    let cases = [
        // Left in a shell, or set by a cluster's operator.
        (OPEN_MPI, "RANK=0 WORLD_SIZE=1", Launcher::Exported, Launcher::OpenMpi),
        (OPEN_MPI, "RANK=0", Launcher::Exported, Launcher::OpenMpi),
        (OPEN_MPI, "WORLD_SIZE=3", Launcher::Exported, Launcher::OpenMpi),
        (MPICH, "RANK=0 WORLD_SIZE=2", Launcher::Exported, Launcher::Hydra),
        (SRUN, "RANK=2 WORLD_SIZE=4", Launcher::Exported, Launcher::Slurm),
        ("PMIX_RANK=1", "RANK=0 WORLD_SIZE=2", Launcher::Exported, Launcher::Pmix),
        // A rank of torchrun's that has started mpirun.
        (
            TORCHRUN,
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3",
            Launcher::Torchrun,
            Launcher::OpenMpi,
        ),
        // Nobody's daemons.
        (OPEN_MPI, MPICH_UNDER_SLURM, Launcher::OpenMpi, Launcher::Hydra),
        (OPEN_MPI, "PMI_RANK=0 PMI_SIZE=2", Launcher::OpenMpi, Launcher::Pmi),
        (SRUN, "PMI_RANK=1 PMI_SIZE=3", Launcher::Slurm, Launcher::Pmi),
        (SRUN, "PMIX_RANK=1", Launcher::Slurm, Launcher::Pmix),
    ];
    for (one, other, first, second) in cases {
        match Rank::of(one).with(other).with(STORE).read() {
            Err(EnvError::Launchers { first: a, second: b }) => {
                assert_eq!((a.launcher, b.launcher), (first, second), "{other}");
            }
            result => panic!("{other}: {result:?}"),
        }
    }
    let error = Rank::of(OPEN_MPI).with("RANK=0 WORLD_SIZE=1").read().unwrap_err();
    assert_eq!(
        error.to_string(),
        "two launchers differ about this process: RANK=0 and WORLD_SIZE=1 (exported variables), \
         OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2 (Open MPI's mpirun); take out those of the \
         one that did not start it, by `env -u RANK -u WORLD_SIZE` or `env -u OMPI_COMM_WORLD_RANK -u \
         OMPI_COMM_WORLD_SIZE`"
    );
    // Either of which helps.
    assert!(Rank::of(OPEN_MPI).read().is_ok());
    let without = "OMPI_COMM_WORLD_RANK= OMPI_COMM_WORLD_SIZE= PMIX_RANK=";
    let rank = Rank::of(OPEN_MPI).with("RANK=0 WORLD_SIZE=1").with(STORE).with(without);
    assert_eq!(who(&rank), Ok((Launcher::Exported, 0, 1)));
}

#[test]
fn numbers_that_cannot_be() {
    let torchrun = Rank::of(TORCHRUN);
    for (changed, first, second) in [
        ("GROUP_RANK=2", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        ("GROUP_WORLD_SIZE=9", "GROUP_WORLD_SIZE", "WORLD_SIZE"),
        ("GROUP_RANK=0 GROUP_WORLD_SIZE=1", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
        ("LOCAL_WORLD_SIZE=8", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    ] {
        match torchrun.with(changed).read() {
            Err(EnvError::Conflict { first: a, second: b, .. }) => {
                assert_eq!((a, b), (first, second))
            }
            other => panic!("{changed}: {other:?}"),
        }
    }
    assert!(torchrun.with("LOCAL_WORLD_SIZE=7").read().is_ok());
    for (rank, changed, variable) in [
        (SRUN, "SLURM_STEP_TASKS_PER_NODE=2(x", "SLURM_STEP_TASKS_PER_NODE"),
        (SRUN, "SLURM_NODEID=2", "SLURM_STEP_TASKS_PER_NODE"),
        (SRUN, "SLURM_STEP_NODELIST=n[1", "SLURM_STEP_NODELIST"),
        (SRUN, "SLURM_STEP_ID=batch", "SLURM_STEP_ID"),
        (SRUN, "SLURM_STEP_NUM_TASKS=0", "SLURM_STEP_NUM_TASKS"),
        (OPEN_MPI, "OMPI_COMM_WORLD_RANK=-1", "OMPI_COMM_WORLD_RANK"),
        (MPICH, "MPI_LOCALNRANKS=two", "MPI_LOCALNRANKS"),
    ] {
        match Rank::of(rank).with(changed).read() {
            Err(EnvError::Invalid { variable: found, .. }) => assert_eq!(found, variable),
            other => panic!("{changed}: {other:?}"),
        }
    }
    for (rank, without, variable) in [
        (OPEN_MPI, "OMPI_COMM_WORLD_SIZE=", "OMPI_COMM_WORLD_SIZE"),
        (SRUN, "SLURM_STEP_NUM_TASKS= SLURM_NTASKS=", "SLURM_STEP_NUM_TASKS"),
        ("PMIX_RANK=0", "PMIX_NAMESPACE=x", "WORLD_SIZE"),
    ] {
        match Rank::of(rank).with(without).read() {
            Err(EnvError::Missing { variable: found, .. }) => assert_eq!(found, variable),
            other => panic!("{without}: {other:?}"),
        }
    }
    assert!(matches!(
        Rank::of(OPEN_MPI).with("OMPI_COMM_WORLD_RANK=2 PMIX_RANK=2").read(),
        Err(EnvError::Conflict { first: "OMPI_COMM_WORLD_RANK", .. })
    ));
}

#[test]
fn launchers_are_listed() {
    let text = EnvError::NotLaunched.to_string();
    for variable in ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"] {
        assert!(text.contains(variable), "{text}");
    }
    assert!(text.starts_with("no launcher"), "{text}");
}
