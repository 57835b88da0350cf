//! Messages as ranks and stores send them: what fuzzing begins with.

use std::net::SocketAddr;
use std::time::Duration;

use symmem_hal::Device;

use crate::exchange::frame::{Frame, WIRE_VERSION};
use crate::exchange::hosts;
use crate::exchange::parcel::Parcel;
use crate::exchange::token::Token;
use crate::exchange::{ExchangeError, RoundKey};
use crate::group::{Options, agree, recover};
use crate::liveness::Message;
use crate::rendezvous::record::{About, Record, Step};
use crate::rendezvous::{exchange, multicast};
use crate::store::GatherFault;
use crate::store::tcp::wire::{Answer, Query, Request, Resumed};

/// Bytes for each target, by its name.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |target, of: Vec<Vec<u8>>| seeds.extend(of.into_iter().map(|s| (target, s)));
    add("agreement_record", records());
    add("environment", environments());
    add("exchange_frame", frames());
    add(
        "link_message",
        [Message::Leave { group: 7 }, Message::Released { group: 7, ordinal: 300 }]
            .iter()
            .filter_map(|message| postcard::to_stdvec(message).ok())
            .collect(),
    );
    add("parcel", parcels());
    add(
        "roll",
        vec![
            recover::roll::seed(false, &[]),
            recover::roll::seed(false, &[0, 1]),
            recover::roll::seed(true, &[0, 1, 3]),
            recover::roll::seed(true, &[0, 3]),
        ],
    );
    add("store_answer", answers());
    add("store_request", requests());
    add(
        "token",
        Token::from_hex(&[b'7'; 64]).map_or(Vec::new(), |token| {
            vec![token.to_hex().into_bytes(), b"0123456789abcdefABCDEF".repeat(3)[..64].to_vec()]
        }),
    );
    add("votes", votes());
    seeds
}

fn records() -> Vec<Vec<u8>> {
    let about = |step, members, segment| About {
        step,
        run: "job-7.0",
        group: 0x1234_5678_9abc_def0,
        members,
        generation: 1,
        ordinal: 300,
        view: None,
        segment,
    };
    let options = Options {
        sections: vec![("sync".to_owned(), "lanes".to_owned(), "4".to_owned())],
        ..Options::default()
    };
    let (device, stub) = (Device::host(), Device::stub(0));
    let mut first = Record::new(&about(Step::CreateGroup, &[0, 1], None), &options, &device);
    first.reported.let_go = vec![(7, 1), (7, 300)];
    let mut second = Record::new(&about(Step::Rendezvous, &[0, 1], Some(3)), &options, &stub);
    // The same wherever they are made.
    for (process, record) in [(4711, &mut first), (4712, &mut second)] {
        let reported = &mut record.reported;
        (reported.host, reported.process) = ("node-0".to_owned(), process);
        (reported.device_name, reported.units) = ("a device".to_owned(), 2);
        reported.device = [process as u8; 16];
    }
    let (first, second) = (first.encode(), second.encode());
    vec![first.clone(), [&*first, &*first].concat(), [&*first, &*second].concat()]
}

fn environments() -> Vec<Vec<u8>> {
    let least = "RANK=3\nWORLD_SIZE=8\nMASTER_ADDR=node-0\nMASTER_PORT=29500\n";
    let all = "LOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nTORCHELASTIC_RUN_ID=job-7\n\
               TORCHELASTIC_RESTART_COUNT=2\nTORCHELASTIC_USE_AGENT_STORE=True\n";
    let open_mpi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                    OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_MCA_ess_base_jobid=1573257217 PMIX_RANK=3 \
                    PMIX_NAMESPACE=1573257217";
    let hydra = "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
    let slurm = "SLURM_JOB_ID=3 SLURM_STEP_ID=2 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=11 \
                 SLURM_LOCALID=2 SLURM_NODEID=0 SLURM_STEP_NUM_NODES=3 SLURM_STEP_TASKS_PER_NODE=4(x2),3 \
                 SLURM_STEP_NODELIST=host[01-02,7],other SLURM_RESTART_COUNT=1";
    let groups = "GROUP_RANK=1\nGROUP_WORLD_SIZE=4\n";
    let words = |text: &str| text.replace(' ', "\n");
    let texts = [
        least.to_owned(),
        format!("{least}{all}"),
        format!("RANK=0\n{all}"),
        format!("{least}{all}{groups}"),
        words(open_mpi),
        words(&format!("{open_mpi} {slurm}")),
        words(&format!("{hydra} MASTER_ADDR=n1 MASTER_PORT=29400")),
        words(slurm),
    ];
    texts.into_iter().map(String::into_bytes).collect()
}

fn frames() -> Vec<Vec<u8>> {
    let key = RoundKey { group: 7, generation: 1, number: 2, part: 0 };
    let parcels = vec![Parcel::Descriptor, Parcel::Fabric([[1; 32]; 2])];
    let errors = [
        ExchangeError::Missing {
            missing: vec![1, 3],
            allowed: Duration::from_millis(1500),
            hosts: vec!["a".to_owned(), "b".to_owned()],
        },
        ExchangeError::Lost { rank: 1 },
        ExchangeError::Cancelled,
        ExchangeError::Refused("no".to_owned()),
        ExchangeError::Duplicate { rank: 2 },
        ExchangeError::Late { rank: 3 },
        ExchangeError::Claimed { rank: 4 },
        ExchangeError::Store("lost".to_owned()),
        ExchangeError::Unreachable {
            rank: 5,
            address: SocketAddr::from(([10, 0, 0, 1], 4000)),
            reason: "no".to_owned(),
        },
        ExchangeError::Busy { allowed: Duration::from_secs(1) },
        ExchangeError::TooLarge { bytes: 100_000, limit: 98_304 },
        ExchangeError::Descriptors { call: "accept".to_owned(), limit: 1024 },
        ExchangeError::System { call: "poll".to_owned(), reason: "no".to_owned() },
    ];
    let frames = [
        Frame::Challenge { version: WIRE_VERSION, nonce: [1; 16] },
        Frame::Hello { nonce: [2; 16], proof: [3; 32] },
        Frame::Welcome { proof: [4; 32] },
        Frame::Come {
            key,
            members: vec![0, 1, 300],
            me: 1,
            left: Duration::from_millis(900),
            allowed: Duration::from_secs(1),
            linked: vec![0],
            payload: vec![5; 20],
            parcels: parcels.clone(),
        },
        Frame::Part { index: 1, payload: vec![6; 20], parcels },
        Frame::Link { index: 1 },
        Frame::Done,
        Frame::Cancel,
    ];
    let failures = errors.into_iter().map(Frame::Failed);
    frames.into_iter().chain(failures).filter_map(|frame| frame.encode().ok()).collect()
}

fn parcels() -> Vec<Vec<u8>> {
    let ipc = Parcel::Ipc { handle: [[9; 32]; 2], offset: 4096 };
    let lists = [
        (0, vec![]),
        (1, vec![Parcel::Descriptor]),
        (2, vec![Parcel::Descriptor, Parcel::Fabric([[8; 32]; 2]), ipc, Parcel::Descriptor]),
        (1, vec![Parcel::Descriptor, Parcel::Descriptor]),
    ];
    let encode = |(beside, list): (u8, Vec<Parcel>)| {
        Some([vec![beside], postcard::to_stdvec(&list).ok()?].concat())
    };
    lists.into_iter().filter_map(encode).collect()
}

fn votes() -> Vec<Vec<u8>> {
    let words = vec![agree::seed("the seed", 1), agree::seed("the seed", u64::MAX)];
    let join = |votes: Vec<Vec<u8>>| {
        votes.iter().flat_map(|vote| [&[vote.len() as u8][..], vote].concat()).collect()
    };
    [words, exchange::seeds(), multicast::lockstep::seeds(), hosts::seeds()].map(join).into()
}

fn requests() -> Vec<Vec<u8>> {
    let keys = || vec![&b"symmem/job.0/token"[..], b"hosts"];
    let requests = [
        Request::Validate,
        Request::Ping { nonce: 0x238a },
        Request::Set { key: b"hosts/1", value: b"node-0 (boot 1, user 0)" },
        Request::CompareSet { key: b"symmem/job.0/token", expected: b"", desired: &[b'a'; 64] },
        Request::Get { key: b"k" },
        Request::Add { key: b"hosts", amount: 1 },
        Request::Check { keys: keys() },
        Request::Wait { keys: keys() },
        Request::MultiGet { keys: keys() },
        Request::CancelWait,
        Request::GetNumKeys,
        Request::DeleteKey { key: b"k" },
        Request::Append { key: b"k", value: b"more" },
        Request::MultiSet { entries: vec![(b"a", b"1"), (b"b", b"")] },
        Request::QueuePush { key: b"q", value: b"first" },
        Request::QueuePop { key: b"q" },
        Request::QueueLen { key: b"q" },
        Request::ListKeys,
        Request::Barrier { key: b"b", count: 2 },
        Request::Open { session: 7 },
        Request::Resume { session: 7, next: 3 },
        Request::Gather { key: b"g", total: 3, slots: &[0, 0, 0, 0, 2, 0, 0, 0], value: b"v" },
    ];
    let encode = |request: &Request<'_>| {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        bytes
    };
    let mut seeds: Vec<Vec<u8>> = requests.iter().map(encode).collect();
    seeds.push(seeds.concat());
    // Lengths without what they announce, and every code.
    for length in [17, 8 << 10, u64::MAX - 8, u64::MAX] {
        seeds.push([&[Query::Get.code()][..], &u64::to_le_bytes(length)].concat());
        seeds.push([&[Query::Wait.code()][..], &u64::to_le_bytes(length)].concat());
    }
    seeds.extend(Query::ALL.map(|query| vec![query.code()]));
    seeds
}

fn answers() -> Vec<Vec<u8>> {
    let mut values = vec![2];
    Answer::put_value(&mut values, b"first");
    Answer::put_value(&mut values, b"");
    let mut integer = vec![0];
    Answer::put_integer(&mut integer, -3);
    let mut nonce = vec![0];
    Answer::put_nonce(&mut nonce, 0x238a);
    let huge = [&[1][..], &u64::MAX.to_le_bytes()].concat();
    let of = |put: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = vec![0];
        put(&mut bytes);
        bytes
    };
    let keys: [&[u8]; 2] = [b"a", b"b"];
    let parts: [(&[u32], &[u8]); 2] = [(&[0, 2], b"first"), (&[1], b"")];
    let reason = "storing is over the limit".to_owned();
    vec![
        values,
        integer,
        nonce,
        vec![0, 0],
        vec![0, 1],
        vec![0, 0, 1],
        vec![0, 2],
        huge,
        of(&|out| Answer::put_popped(out, 2, Some(b"first"))),
        of(&|out| Answer::put_keys(out, keys.into_iter())),
        of(&|out| Answer::put_resumed(out, &Resumed::Known { done: 3 })),
        of(&|out| Answer::put_resumed(out, &Resumed::Refused { reason: reason.clone() })),
        of(&|out| Answer::put_parts(out, parts.into_iter())),
        of(&|out| Answer::put_missing(out, &[1, 2])),
        of(&|out| Answer::put_fault(out, GatherFault::Overlap { slot: 1 })),
        of(&|out| Answer::put_no_room(out, &reason)),
    ]
}
