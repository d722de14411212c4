//! What is sent when.

use crate::flight::{Flight, Landed};
use crate::prompt::{Calibration, Prompts};
use crate::target::{Shape, Style, Url};
use crate::words::Words;
use bytes::Bytes;
use forebay_base::Nanos;
use forebay_records::End;
use forebay_workload::{Arrivals, Workload};
use http::HeaderMap;
use std::sync::Arc;

/// A request that is ready to leave.
#[derive(Debug)]
pub struct Shot {
    /// When it has to leave.
    pub at: Nanos,
    /// When its client gives up.
    pub give_up: Option<Nanos>,
    /// Headers, `host` among them.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// Its measuring. Boxed, since a request changes hands several times.
    pub flight: Box<Flight>,
}

/// Turns arrivals into requests, and ends into what follows from them.
#[derive(Debug)]
pub struct Conductor {
    arrivals: Arrivals,
    prompts: Prompts,
    shape: Shape,
    follows: Arc<[bool]>,
}

impl Conductor {
    /// The requests of a workload under a seed.
    pub(crate) fn new(workload: &Workload, seed: u64, prompts: Prompts, shape: Shape) -> Conductor {
        let arrivals = workload.arrivals(seed);
        let follows = (0..workload.classes.len() as u16).map(|c| arrivals.follows(c)).collect();
        Conductor { arrivals, prompts, shape, follows }
    }

    /// The same for whoever sends the requests himself: to a server at `url` that serves `model`, with a word taken
    /// for a token.
    pub fn for_url(
        workload: &Workload,
        seed: u64,
        url: &Url,
        model: &str,
        style: &Style,
        salt: u64,
    ) -> Conductor {
        let prompts = Prompts::new(workload, style.api, Words::default(), Calibration::default(), salt);
        Conductor::new(workload, seed, prompts, Shape::new(workload, url, model, style, salt))
    }

    /// By class, whether the ends of its requests have to be told with [`Conductor::landed`].
    pub fn follows(&self) -> Arc<[bool]> {
        Arc::clone(&self.follows)
    }

    /// When the next request has to leave; `None` if no more is known of.
    pub fn next_at(&mut self) -> Option<Nanos> {
        self.arrivals.peek_at()
    }

    /// Requests that are out and whose end may bring another.
    pub fn followed(&self) -> usize {
        self.arrivals.followed()
    }

    /// The next request.
    pub fn take(&mut self) -> Option<Shot> {
        let a = self.arrivals.next()?;
        let headers = self.shape.headers(&a);
        let Conductor { shape, prompts, .. } = self;
        let body = shape.body(&a, |out| prompts.write(&a, out)).into();
        let flight = Box::new(Flight::new(&a, prompts.wants_answer(a.class)));
        Some(Shot { at: a.at, give_up: a.timeout.map(|t| a.at + t), headers, body, flight })
    }

    /// Tells what became of a request at `now`; what follows from it is due then or later.
    pub fn landed(&mut self, landed: &mut Landed, now: Nanos) {
        let (row, session) = (&landed.record.row, landed.record.live.session);
        match (row.end, session) {
            (End::Finished, session) => {
                let goes_on = self.arrivals.ended(row.number, now);
                if let Some(session) = session {
                    self.prompts.answered(row.class, session, std::mem::take(&mut landed.text), goes_on);
                }
            }
            (End::Censored, _) => {}
            (_, session) => {
                let again = self.arrivals.refused(row.number, now);
                if let Some(session) = session.filter(|_| !again) {
                    self.prompts.over(row.class, session);
                }
            }
        }
    }
}
