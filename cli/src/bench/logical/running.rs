//! The store and the ranks' processes of one run.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::children::Process;
use super::messages::{Counts, Order, Reply};
use super::{Logical, LogicalError, PATIENCE};
use crate::descriptors;

/// How long a server may take to count what it has sent.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Running {
    /// The store's, if it is this benchmark's.
    server: Option<Process>,
    pub address: SocketAddr,
    pub server_pid: Option<u32>,
    processes: Vec<Process>,
    /// What its clients have counted up to now, handshakes among it.
    pub clients: Counts,
}

impl Running {
    /// Starts what so many connections need.
    pub fn start(logical: &Logical, connections: u32) -> Result<Self, LogicalError> {
        let (server, address) = match logical.server {
            Some(address) => (None, address),
            None => {
                let mut server = Process::start("the store".to_owned())?;
                let connections = u64::from(connections) + descriptors::OWN;
                server.tell(&Order::Serve { connections })?;
                match server.hear(PATIENCE)? {
                    Reply::Serving { address } => (Some(server), address),
                    reply => return Err(server.garbled(&reply).into()),
                }
            }
        };
        let server_pid = logical.server_pid.or(server.as_ref().map(Process::id));
        let processes = (0..logical.processes)
            .map(|n| Process::start(format!("process {n} of ranks")))
            .collect::<Result<_, _>>()?;
        Ok(Running { server, address, server_pid, processes, clients: Counts::default() })
    }

    /// Whether the own server has counted what its clients have. It counts bytes once they have left: of
    /// the last answers a moment after those have come.
    pub fn agree(&mut self) -> Result<(), LogicalError> {
        let until = Instant::now() + GRACE;
        while let Some((server, _)) = self.count()? {
            let clients = self.clients;
            if server == clients {
                break;
            }
            if Instant::now() > until {
                return Err(LogicalError::Counts { clients, server });
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Disconnects the ranks, so that there is room for others.
    pub fn leave(&mut self) -> Result<(), LogicalError> {
        self.each(|_| Order::Leave, PATIENCE, |reply| matches!(reply, Reply::Left).then_some(()))?;
        let until = Instant::now() + PATIENCE;
        while let Some((_, open)) = self.count()?
            && open > 0
        {
            if Instant::now() > until {
                return Err(LogicalError::Stay { open });
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Tells all processes of ranks what to do, and hears what came of it.
    pub fn each<T>(
        &mut self,
        order: impl Fn(u32) -> Order,
        patience: Duration,
        read: impl Fn(&Reply) -> Option<T>,
    ) -> Result<Vec<T>, LogicalError> {
        for (process, number) in self.processes.iter_mut().zip(0..) {
            process.tell(&order(number))?;
        }
        let hear = |process: &mut Process| {
            let reply = process.hear(patience)?;
            read(&reply).ok_or_else(|| process.garbled(&reply).into())
        };
        self.processes.iter_mut().map(hear).collect()
    }

    /// What the own server has counted, and how many are connected to it.
    fn count(&mut self) -> Result<Option<(Counts, u64)>, LogicalError> {
        let Some(server) = &mut self.server else { return Ok(None) };
        server.tell(&Order::Count)?;
        match server.hear(PATIENCE)? {
            Reply::Counted { counts, open } => Ok(Some((counts, open))),
            reply => Err(server.garbled(&reply).into()),
        }
    }
}
