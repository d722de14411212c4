//! Endpoints that cannot be reached, and requests that move away from them.

use super::Kernel;
use crate::effect::{Effects, Id};
use crate::policy::Left;
use crate::pool::EndpointId;
use crate::table::{Entry, State};
use forebay_base::Nanos;

impl Kernel {
    /// Whether an endpoint takes connections. One that does not is no candidate and counts in no mean; a
    /// pool without others is empty. What runs there goes on.
    pub fn set_available(&mut self, now: Nanos, id: EndpointId, available: bool, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_endpoint(now, if available { "restore" } else { "eject" }, id);
        if self.pool.set_available(id, available) {
            self.saturation.members_changed();
            self.pool_changed(now);
        }
        self.settle(now, fx);
    }

    /// The endpoint `avoid` could not begin a dispatched request: another one is chosen, and the lease
    /// moves there. The request does not queue again, whatever the saturation. If there is no other
    /// endpoint, `avoid` itself is tried again as long as it is available. Answers with a dispatch, or with
    /// an end if there is nowhere to go; with nothing if the request does not run.
    pub fn retry(&mut self, now: Nanos, id: Id, avoid: EndpointId, fx: &mut Effects) {
        let now = self.advance(now, fx);
        fx.log_retry(now, id, avoid);
        let Some(Entry { state, .. }) = self.table.get_mut(id) else { return };
        if !matches!(state, State::Running(_)) {
            return;
        }
        let mut lane = None;
        if let State::Running(lease) = std::mem::replace(state, State::Deciding) {
            lane = lease.lane;
            self.release(now, id, &lease, Left::Moved);
        }
        self.load_fell();
        let candidates = &mut self.scratch.candidates;
        candidates.clone_from(self.pool.members());
        if self.pool.get(avoid).is_some() && candidates.len() > 1 {
            candidates.remove(avoid.index);
        }
        // Its flow was charged when it left the queue.
        self.dispatch(now, id, lane, false, fx);
        self.settle(now, fx);
    }
}
