//! What is measured, and what the figures mean.

use std::io::{self, Write};

use symmem::prelude::*;

use super::Logical;
use super::messages::{Client, Plan};
use crate::descriptors;

impl Logical {
    /// For those plans, in up to so many waves.
    pub(super) fn header(
        &self,
        out: &mut dyn Write,
        plans: &[Plan],
        waves: Option<usize>,
    ) -> io::Result<()> {
        let cpu = Device::host();
        let line = |out: &mut dyn Write, name, text: String| writeln!(out, "{name:12}{text}");
        let Logical { record, processes, deadline, .. } = self;
        let first = self.layouts.first();
        let (group, per_host) = first.map_or((0, 0), |layout| (layout.group, layout.per_host));
        let what =
            format!("logical ranks in groups of {group}, {per_host} a host; records of {record} B");
        line(out, "rendezvous", what)?;
        line(out, "machine", format!("{}, {} cores", cpu.name(), cpu.capabilities().units))?;
        let store = match self.server {
            Some(address) => format!("at {address}"),
            None => "this library's, new for every run, in a process for itself".to_owned(),
        };
        line(out, "store", store)?;
        let client = match self.client {
            Client::Wire => "one thread and epoll in each",
            Client::Library => "the library's client on a thread for each rank",
        };
        line(out, "load", format!("{processes} processes, {client}; a connection for every rank"))?;
        for plan in plans {
            line(out, plan.name(), plan_text(*plan).to_owned())?;
        }
        let seconds = "from a common start, all connected, until the last rank has everything, checked; \
                       the median of the runs";
        line(out, "seconds", format!("{seconds} ({})", self.runs))?;
        line(out, "apart", "connecting and handshakes; how ranks of a host meet at their leader: without the store, not done".to_owned())?;
        line(out, "requests", "a rank's on the wire, handshakes left out: the mean, and the most of one rank; bytes: both ways".to_owned())?;
        line(
            out,
            "checked",
            "every part and its place, on every rank that reads it; counts of both sides"
                .to_owned(),
        )?;
        if let Some(waves) = waves.filter(|waves| *waves > 1) {
            let limit = descriptors::most();
            let text = format!(
                "RLIMIT_NOFILE is {limit} at most: up to {waves} waves of whole groups, one after the \
                 other at the same store; seconds are their sum. Elsewhere all would be connected at once"
            );
            line(out, "waves", text)?;
        }
        if let Some(missing) = self.missing {
            let text =
                format!("rank {missing} does not come; deadline {:.3} s", deadline.as_secs_f64());
            line(out, "missing", text)?;
        }
        writeln!(out)?;
        if cfg!(debug_assertions) {
            eprintln!("warning: this is a debug build: figures mean nothing\n");
        }
        Ok(())
    }
}

fn plan_text(plan: Plan) -> &'static str {
    match plan {
        Plan::Gather => {
            "every rank asks for the run's token; each host's leader gathers records, then votes (GATHER)"
        }
        Plan::Keys => {
            "the same; a gather is a multi_set of the host's slots and a multi_get of the group's"
        }
        Plan::Flat => "every rank sets its record and gets each other's; no token, no votes",
        Plan::MultiGet => {
            "every rank sets its record and gets all by one multi_get; no token, no votes"
        }
    }
}
