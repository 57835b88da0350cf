//! What is to happen once work in flight has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use parking_lot::Mutex;
use symmem_hal::Event;

type Act = Box<dyn FnOnce() + Send>;

struct Afterwards {
    events: Vec<Event>,
    /// Which of them is awaited; one after the other, each wakes once.
    awaited: AtomicUsize,
    act: Mutex<Option<Act>>,
}

/// Does something once all events are complete: at once if they are, else on the thread that completes
/// the last. Never blocks.
pub(crate) fn afterwards(events: Vec<Event>, act: impl FnOnce() + Send + 'static) {
    let act: Act = Box::new(act);
    let awaited = AtomicUsize::new(0);
    Arc::new(Afterwards { events, awaited, act: Mutex::new(Some(act)) }).wake();
}

impl Wake for Afterwards {
    fn wake(self: Arc<Self>) {
        let next = self.awaited.fetch_add(1, Ordering::AcqRel);
        if let Some(event) = self.events.get(next) {
            return event.on_complete(self.clone().into());
        }
        let act = self.act.lock().take();
        if let Some(act) = act {
            act();
        }
    }
}
