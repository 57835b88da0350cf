//! User objects: something of the user's that graphs keep alive, and the callback that ends it.

use core::ffi::{c_uint, c_void};
use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::Mutex;
use symmem_sys::cuda::bindings::{
    CUgraph, CUhostFn, CUresult as Code, CUuserObject, CUuserObjectRetain_flags,
};

use super::GRAPHS;
use crate::entry::{Outcome, export, put};
use crate::stream::Callback;
use crate::table::{Table, handle, pointer};

#[derive(Debug)]
pub(crate) struct UserObject {
    references: Mutex<u64>,
    destroy: Callback,
}

pub(crate) static OBJECTS: Table<UserObject> = Table::new();

/// What the thread that ends objects is told.
enum Order {
    End(Callback),
    /// Everything before this was done.
    Settle(Sender<()>),
}

/// A thread of the driver's, since the real one, too, calls back from a thread of its own.
fn order(order: Order) {
    static THREAD: OnceLock<Sender<Order>> = OnceLock::new();
    let thread = THREAD.get_or_init(|| {
        let (sender, orders) = channel();
        thread::spawn(move || {
            for order in orders {
                match order {
                    Order::End(callback) => callback.call(),
                    Order::Settle(done) => drop(done.send(())),
                }
            }
        });
        sender
    });
    // The thread never ends.
    let _ = thread.send(order);
}

/// Waits until the callbacks of all objects that have ended returned.
pub(crate) fn settle() {
    let (sender, done) = channel();
    order(Order::Settle(sender));
    let _ = done.recv();
}

fn retain(object: &UserObject, count: u64) {
    *object.references.lock() += count;
}

fn release(name: u64, object: &UserObject, count: u64) -> Outcome {
    let mut references = object.references.lock();
    *references = references.checked_sub(count).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
    if *references == 0 && OBJECTS.remove(name).is_ok() {
        order(Order::End(object.destroy));
    }
    Ok(())
}

/// The references that one graph holds.
#[derive(Debug, Default)]
pub(crate) struct Retained(HashMap<u64, (Arc<UserObject>, u64)>);

impl Retained {
    fn add(&mut self, name: u64, object: Arc<UserObject>, count: u64) {
        self.0.entry(name).or_insert((object, 0)).1 += count;
    }

    fn remove(&mut self, name: u64, count: u64) -> Outcome {
        let (object, held) = self.0.get_mut(&name).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let left = held.checked_sub(count).ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        let object = Arc::clone(object);
        *held = left;
        if left == 0 {
            self.0.remove(&name);
        }
        release(name, &object, count)
    }
}

impl Clone for Retained {
    fn clone(&self) -> Self {
        self.0.values().for_each(|(object, count)| retain(object, *count));
        Retained(self.0.clone())
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        for (name, (object, count)) in self.0.drain() {
            // It cannot have fewer references than this graph holds.
            let _ = release(name, &object, count);
        }
    }
}

export! {
    fn cuUserObjectCreate(
        object: *mut CUuserObject,
        data: *mut c_void,
        destroy: CUhostFn,
        references: c_uint,
        flags: c_uint,
    ) {
        let function = destroy.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        // The flag says that the callback's end is not ordered with anything; there is no other way.
        if references == 0 || flags != 1 || object.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let destroy = Callback { function, data: data.expose_provenance() as u64 };
        let references = Mutex::new(u64::from(references));
        put!(object, pointer(OBJECTS.add(UserObject { references, destroy }.into())));
    }

    fn cuUserObjectRetain(object: CUuserObject, count: c_uint) {
        retain(&*OBJECTS.get(handle(object))?, u64::from(count));
    }

    fn cuUserObjectRelease(object: CUuserObject, count: c_uint) {
        release(handle(object), &*OBJECTS.get(handle(object))?, u64::from(count))?;
    }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) {
        let (graph, name, count) = (GRAPHS.get(handle(graph))?, handle(object), u64::from(count));
        let object = OBJECTS.get(name)?;
        match CUuserObjectRetain_flags(flags) {
            CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE => {}
            CUuserObjectRetain_flags(0) => retain(&object, count),
            _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
        if count == 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        graph.retained.lock().add(name, object, count);
    }

    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) {
        let graph = GRAPHS.get(handle(graph))?;
        graph.retained.lock().remove(handle(object), u64::from(count))?;
    }
}
