//! The stream of arrivals: lazily drawn, merged by (time, class, sequence).

use crate::content::{Content, History, Shared};
use crate::process::Times;
use crate::sample::{Popularity, Stream};
use crate::spec::{Class, Feed, Process, Workload};
use crate::trace::{Walk, Walked};
use forebay_base::{Nanos, Purpose, Span};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

const INPUT: Purpose = Purpose::named("workload-input");
const OUTPUT: Purpose = Purpose::named("workload-output");
const FLOW: Purpose = Purpose::named("workload-flow");
const LORA: Purpose = Purpose::named("workload-lora");
const LORA_SHARE: Purpose = Purpose::named("workload-lora-share");
const TURNS: Purpose = Purpose::named("workload-turns");
const THINK: Purpose = Purpose::named("workload-think");
const ASSIGN: Purpose = Purpose::named("workload-assign");

/// A body without its prompt.
const BODY_BYTES: f64 = 256.0;
/// Sessions one user of a closed loop can have before their draws would meet those of the next user.
const SESSIONS_PER_USER: u64 = 1 << 32;
/// The same for the turns of a session.
const TURNS_PER_SESSION: u64 = 1 << 16;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// From 0 in the order of arrival.
    pub number: u64,
    /// When it reaches the router.
    pub at: Nanos,
    /// Index of its class.
    pub class: u16,
    /// Index of its flow, over all classes: see [`Workload::flow_name`].
    pub flow: u32,
    /// Priority of its class.
    pub priority: i32,
    /// Tokens of its prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of its answer, at least 1.
    pub output_tokens: u32,
    /// Content hashes of 16-token blocks from the front, each standing for everything up to its end: as many
    /// as can be found elsewhere. Empty if the request shares nothing; in a session they run on through the
    /// answer, which the next prompt repeats.
    pub prefix: Arc<[u64]>,
    /// Size of its body.
    pub bytes: u64,
    /// Its client gives up after this time.
    pub timeout: Option<Span>,
    /// Deadline of its first token that counts for goodput.
    pub slo_ttft: Option<Span>,
    /// The session, within its class; not dense.
    pub session: Option<u64>,
    /// Index of its adapter, over all classes: see [`Workload::lora_name`].
    pub lora: Option<u16>,
    /// Sends of the same request before this one.
    pub attempt: u16,
    /// What names the request within its class, the same for all its sends; rows of a trace count apart.
    pub key: u64,
}

/// Tokens of a block of [`Arrival::prefix`].
pub const BLOCK_TOKENS: u32 = 16;

impl Arrival {
    /// Hashes of the full blocks of `block_tokens` (a multiple of 16) of the prompt, as far as it shares: what
    /// a router's prefix index is asked for.
    pub fn router_blocks(&self, block_tokens: u32) -> impl Iterator<Item = u64> + '_ {
        let step = (block_tokens / BLOCK_TOKENS).max(1) as usize;
        let full = (self.prompt_tokens / (step as u32 * BLOCK_TOKENS)) as usize;
        self.prefix.iter().copied().skip(step - 1).step_by(step).take(full)
    }
}

/// What is due at one instant. Ordered by time, then class, then what it is: the rest makes it unique.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Nanos,
    class: u16,
    /// Draws of the request come under this number.
    key: u64,
    attempt: u16,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The next request of an open class; the one after it is drawn when this one leaves.
    Open,
    /// The next row of a feed, which is held there.
    Row { feed: usize, row: u64 },
    /// A turn of a session, or a request of a closed loop.
    Turn(Turn),
    /// The same request again.
    Again(Box<Turn>),
}

/// Where in its session a request stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    session: u64,
    index: u32,
    turns: u32,
    history: History,
}

/// A request that has left and whose end matters.
#[derive(Clone, Debug)]
struct Live {
    class: u16,
    key: u64,
    attempt: u16,
    turn: Turn,
    tokens: u32,
}

/// What a class needs at hand.
#[derive(Clone, Debug)]
struct Room {
    stream: Stream,
    times: Option<Times>,
    /// Requests or sessions of an open class so far.
    index: u64,
    first_flow: u32,
    flows: Popularity,
    first_lora: u16,
    loras: Popularity,
    content: Content,
    /// Whether ends have to be reported: closed loops, sessions, retries.
    follows: bool,
}

/// A trace on its way.
#[derive(Debug)]
struct Course {
    stream: Stream,
    rows: Walk,
    /// The row that is due.
    held: Option<Walked>,
}

/// The arrivals of a workload under a seed. Memory is that of requests in flight whose end matters, of the
/// pools of prompts, and of rows of traces that are held until those that belong before them are read; not of
/// requests made.
#[derive(Debug)]
pub struct Arrivals {
    workload: Arc<Workload>,
    rooms: Vec<Room>,
    feeds: Vec<Course>,
    heap: BinaryHeap<Reverse<Due>>,
    live: BTreeMap<u64, Live>,
    number: u64,
    end: Nanos,
    nothing: Arc<[u64]>,
}

impl Workload {
    /// The arrivals under a seed.
    pub fn arrivals(&self, seed: u64) -> Arrivals {
        Arrivals::new(Arc::new(self.clone()), seed)
    }
}

impl Room {
    fn new(class: &Class, seed: u64, end: Nanos, first_flow: u32, first_lora: u16) -> Room {
        let stream = Stream::new(seed, &class.name);
        let closed = matches!(class.arrivals, Some(Process::Closed { .. }));
        let lora = class.lora;
        Room {
            stream,
            times: Times::new(class, stream, end),
            index: 0,
            first_flow,
            flows: Popularity::new(u64::from(class.flows.count), class.flows.skew),
            first_lora,
            loras: Popularity::new(lora.map_or(0, |l| u64::from(l.adapters)), lora.map_or(0.0, |l| l.skew)),
            content: Content::new(class, seed),
            follows: closed || class.sessions.is_some() || class.retry.attempts > 1,
        }
    }
}

impl Arrivals {
    fn new(workload: Arc<Workload>, seed: u64) -> Arrivals {
        let end = workload.mode.arrivals_end();
        let (mut flow, mut lora, mut rooms) = (0, 0, Vec::new());
        for class in &workload.classes {
            rooms.push(Room::new(class, seed, end, flow, lora));
            flow += class.flows.count;
            lora += class.lora.map_or(0, |l| l.adapters);
        }
        let course = |f: &Feed| {
            let rows = f.trace.walk(f.spread);
            Course { stream: Stream::new(seed, &f.name), rows, held: None }
        };
        let feeds = workload.traces.iter().map(course).collect();
        let (heap, live, nothing) = (BinaryHeap::new(), BTreeMap::new(), Arc::from([]));
        let mut a = Arrivals { workload, rooms, feeds, heap, live, number: 0, end, nothing };
        for class in 0..a.rooms.len() as u16 {
            a.start(class);
        }
        for feed in 0..a.feeds.len() {
            a.plan_row(feed);
        }
        a
    }

    /// The first request of a class, or of each user.
    fn start(&mut self, class: u16) {
        let workload = Arc::clone(&self.workload);
        if let Some(Process::Closed { users, ramp, .. }) = &workload.classes[usize::from(class)].arrivals {
            for user in 0..u64::from(*users) {
                let at = Nanos((u128::from(ramp.0) * u128::from(user) / u128::from(*users)) as u64);
                self.plan_session(class, at, user * SESSIONS_PER_USER);
            }
        } else {
            self.plan_open(class);
        }
    }

    fn plan_open(&mut self, class: u16) {
        let room = &mut self.rooms[usize::from(class)];
        if let Some(at) = room.times.as_mut().and_then(Times::next) {
            let key = room.index;
            room.index += 1;
            self.heap.push(Reverse(Due { at, class, key, attempt: 0, what: What::Open }));
        }
    }

    /// The first turn of a session.
    fn plan_session(&mut self, class: u16, at: Nanos, session: u64) {
        if at < self.end {
            let turn = self.first_turn(class, session);
            self.plan_turn(class, at, turn);
        }
    }

    fn plan_turn(&mut self, class: u16, at: Nanos, turn: Turn) {
        let key = if self.workload.classes[usize::from(class)].sessions.is_some() {
            turn.session.wrapping_mul(TURNS_PER_SESSION).wrapping_add(u64::from(turn.index))
        } else {
            turn.session
        };
        self.heap.push(Reverse(Due { at, class, key, attempt: 0, what: What::Turn(turn) }));
    }

    fn first_turn(&self, class: u16, session: u64) -> Turn {
        let sessions = self.workload.classes[usize::from(class)].sessions.as_ref();
        let stream = self.rooms[usize::from(class)].stream;
        let turns = sessions.map_or(1, |s| s.turns.tokens(stream, TURNS, session));
        Turn { session, index: 0, turns, history: History::default() }
    }

    /// The next row of a feed that has a class and comes before the end.
    fn plan_row(&mut self, feed: usize) {
        let f = &self.workload.traces[feed];
        let course = &mut self.feeds[feed];
        for walked in course.rows.by_ref().take_while(|w| w.index < f.limit) {
            let row = walked.index;
            let at = Nanos((walked.at.0 as f64 / f.rate_scale).round() as u64);
            if at >= self.end {
                return;
            }
            let label = f.trace.label(&walked.row);
            let named = f.assign.labels.iter().find(|(l, _)| l == label).map(|(_, class)| *class);
            let drawn = || {
                let u = course.stream.unit(ASSIGN, row, 0);
                f.assign.shares.iter().find(|(_, share)| u <= *share).map(|(class, _)| *class)
            };
            if let Some(class) = named.or_else(drawn) {
                course.held = Some(walked);
                let what = What::Row { feed, row };
                self.heap.push(Reverse(Due { at, class, key: row, attempt: 0, what }));
                return;
            }
        }
    }

    /// When the next request arrives; `None` if no more is known of. While a request of a closed loop or a
    /// session is out, its end may bring one.
    pub fn peek_at(&mut self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(d)| d.at)
    }

    /// How many requests are out whose end may bring another.
    pub fn followed(&self) -> usize {
        self.live.len()
    }

    /// The next request.
    #[allow(clippy::should_implement_trait, reason = "not an iterator: what ends may bring more after None")]
    pub fn next(&mut self) -> Option<Arrival> {
        let Reverse(due) = self.heap.pop()?;
        let Due { at, class, key, attempt, what } = due;
        let (turn, row) = match what {
            What::Open => {
                self.plan_open(class);
                let turn = self.first_turn(class, key);
                (turn, None)
            }
            What::Row { feed, .. } => {
                let held = self.feeds[feed].held.take();
                self.plan_row(feed);
                (
                    Turn { session: key, index: 0, turns: 1, history: History::default() },
                    held.map(|h| (feed, h)),
                )
            }
            What::Turn(turn) => (turn, None),
            What::Again(turn) => (*turn, None),
        };
        let of_trace = row.is_some();
        let key = match self.workload.classes[usize::from(class)].sessions {
            Some(_) if !of_trace => {
                turn.session.wrapping_mul(TURNS_PER_SESSION).wrapping_add(u64::from(turn.index))
            }
            _ => key,
        };
        let mut arrival = match row {
            Some((feed, row)) => self.of_row(at, class, feed, &row),
            None => self.of_class(at, class, key, &turn),
        };
        (arrival.number, arrival.attempt, arrival.key) = (self.number, attempt, key);
        self.number += 1;
        if self.rooms[usize::from(class)].follows && !of_trace {
            let tokens = arrival.prompt_tokens.saturating_add(arrival.output_tokens);
            self.live.insert(arrival.number, Live { class, key, attempt, turn, tokens });
        }
        Some(arrival)
    }

    fn of_class(&mut self, at: Nanos, class: u16, key: u64, turn: &Turn) -> Arrival {
        let c = &self.workload.classes[usize::from(class)];
        let room = &mut self.rooms[usize::from(class)];
        let since = at.0 as f64 / 1e9;
        let (input, output) = match &c.arrivals {
            Some(Process::ServeGen { client, .. }) => client.lengths(since),
            _ => (&c.input, &c.output),
        };
        let (flow, lora) = room.tenant(c, if c.sessions.is_some() { turn.session } else { key });
        let output_tokens = output.tokens(room.stream, OUTPUT, key);
        let Shared { prompt_tokens, prefix } = room.content.of(key, turn.session, turn.history, lora, |n| {
            (input.tokens(room.stream, INPUT, n), output_tokens)
        });
        let prefix = prefix.unwrap_or_else(|| Arc::clone(&self.nothing));
        let session = c.sessions.as_ref().map(|_| turn.session);
        let w = &self.workload;
        Arrival { flow, session, lora, ..blank(w, at, class, prompt_tokens, output_tokens, prefix) }
    }

    fn of_row(&mut self, at: Nanos, class: u16, feed: usize, walked: &Walked) -> Arrival {
        let w = &self.workload;
        let course = &self.feeds[feed];
        let trace = &w.traces[feed].trace;
        let (r, index, ids) = (&walked.row, walked.index, walked.blocks.as_slice());
        let room = &self.rooms[usize::from(class)];
        // Rows of two feeds in one class are different requests.
        let (flow, lora) = room.tenant(&w.classes[usize::from(class)], ((feed as u64) << 48) | index);
        if let Some((person, ids)) = trace.recorded(index, ids) {
            let person = *person;
            let most = r.prompt_tokens.saturating_add(r.output_tokens) / BLOCK_TOKENS;
            let prefix = crate::content::of_ids(course.stream, ids.take(most as usize));
            return Arrival {
                flow: room.first_flow + person.flow,
                lora: person.lora.map(|l| room.first_lora + l),
                session: person.session,
                slo_ttft: person.slo_ttft,
                bytes: person.bytes,
                ..blank(w, at, class, r.prompt_tokens, r.output_tokens, prefix)
            };
        }
        let prefix = match ids {
            [] => Arc::clone(&self.nothing),
            ids => crate::content::of_blocks(course.stream, ids, trace.block_tokens, r.prompt_tokens, lora),
        };
        Arrival { flow, lora, ..blank(w, at, class, r.prompt_tokens, r.output_tokens, prefix) }
    }

    /// Whether what becomes of a class's requests decides when others come: then their ends have to be
    /// reported.
    pub fn follows(&self, class: u16) -> bool {
        self.rooms.get(usize::from(class)).is_some_and(|room| room.follows)
    }

    /// Tells that a request got its answer at `at`: its user or session goes on. Others need not be reported,
    /// but may be. True if its session has another turn.
    pub fn ended(&mut self, number: u64, at: Nanos) -> bool {
        let Some(live) = self.live.remove(&number) else { return false };
        let workload = Arc::clone(&self.workload);
        let class = &workload.classes[usize::from(live.class)];
        if let Some(sessions) = &class.sessions {
            let full = live.tokens >= sessions.max_context;
            if live.turn.index + 1 < live.turn.turns && !(sessions.history && full) {
                let stream = self.rooms[usize::from(live.class)].stream;
                let think = sessions.think.value(stream, THINK, live.key);
                let history = if sessions.history {
                    History { tokens: live.tokens, most: sessions.max_context }
                } else {
                    History::default()
                };
                let turn = Turn { index: live.turn.index + 1, history, ..live.turn };
                self.plan_turn(live.class, at + Span::from_secs_f64(think), turn);
                return true;
            }
        }
        self.next_of_user(&live, at);
        false
    }

    /// Tells that a request was refused or failed at `at`. True if its client will send it again; otherwise
    /// its session is over, and a user of a closed loop goes on to the next.
    pub fn refused(&mut self, number: u64, at: Nanos) -> bool {
        let Some(live) = self.live.remove(&number) else { return false };
        let retry = self.workload.classes[usize::from(live.class)].retry;
        if u32::from(live.attempt) + 1 >= retry.attempts {
            self.next_of_user(&live, at);
            return false;
        }
        let backoff = retry.backoff.0.saturating_mul(1 << live.attempt.min(20));
        let Live { class, key, attempt, turn, .. } = live;
        let what = What::Again(Box::new(turn));
        self.heap.push(Reverse(Due { at: at + Span(backoff), class, key, attempt: attempt + 1, what }));
        true
    }

    fn next_of_user(&mut self, live: &Live, at: Nanos) {
        let workload = Arc::clone(&self.workload);
        if let Some(Process::Closed { think, .. }) = &workload.classes[usize::from(live.class)].arrivals {
            let stream = self.rooms[usize::from(live.class)].stream;
            let pause = think.value(stream, THINK, live.key);
            self.plan_session(live.class, at + Span::from_secs_f64(pause), live.turn.session + 1);
        }
    }
}

impl Room {
    /// Flow and adapter under a number.
    fn tenant(&self, class: &Class, key: u64) -> (u32, Option<u16>) {
        let flow = if class.flows.count > 1 { self.flows.draw(self.stream, FLOW, key) as u32 } else { 0 };
        let lora = class.lora.filter(|l| l.share >= 1.0 || self.stream.unit(LORA_SHARE, key, 0) < l.share);
        let lora = lora.map(|_| self.first_lora + self.loras.draw(self.stream, LORA, key) as u16);
        (self.first_flow + flow, lora)
    }
}

/// A request with what its class says and nothing else.
fn blank(
    w: &Workload,
    at: Nanos,
    class: u16,
    prompt_tokens: u32,
    output_tokens: u32,
    prefix: Arc<[u64]>,
) -> Arrival {
    let c = &w.classes[usize::from(class)];
    Arrival {
        number: 0,
        at,
        class,
        flow: 0,
        priority: c.priority,
        prompt_tokens,
        output_tokens,
        prefix,
        bytes: (BODY_BYTES + w.bytes_per_token * f64::from(prompt_tokens)).round() as u64,
        timeout: c.timeout,
        slo_ttft: c.slo.ttft,
        session: None,
        lora: None,
        attempt: 0,
        key: 0,
    }
}
