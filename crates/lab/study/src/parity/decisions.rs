//! What a router decided, out of its decision log.

use forebay_base::{Nanos, Span};
use serde_json::Value;
use std::collections::BTreeMap;
use std::str::SplitAsciiWhitespace;

/// A dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The number of the request.
    pub number: u64,
    /// When, on the clock of the run.
    pub at: Nanos,
    /// Index of the endpoint.
    pub endpoint: u32,
    /// How long the request had waited in the router.
    pub waited: Span,
    /// Its line in the log, from 0.
    line: usize,
}

/// All dispatches of a router in their order, with the log that they stand in.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    /// In the order of the log.
    pub list: Vec<Decision>,
    /// From asking to having read, by scrape.
    pub scrapes: Vec<Span>,
    log: String,
}

/// An endpoint as a router knew it at an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EndpointSeen {
    /// Requests that were sent there and had not ended.
    pub in_flight: u32,
    /// Those whose first token had not come back.
    pub without_token: u32,
    /// How old the last scrape was when it was used; `None` without one.
    pub age: Option<Span>,
    /// What it said: requests waiting, running, and the share of KV blocks in use; NaN for what it did not say.
    pub waiting: f64,
    /// See `waiting`.
    pub running: f64,
    /// See `waiting`.
    pub kv: f64,
}

/// What a router knew when it dispatched a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Requests in its queues, this one included.
    pub queued: u64,
    /// Saturation of the pool in the cycle that dispatched; `None` without flow control.
    pub saturation: Option<f64>,
    /// By endpoint.
    pub endpoints: Vec<EndpointSeen>,
}

/// A line of the log.
struct Line<'a> {
    input: bool,
    at: u64,
    verb: &'a str,
    rest: SplitAsciiWhitespace<'a>,
}

fn line(text: &str) -> Option<Line<'_>> {
    let mut rest = text.split_ascii_whitespace();
    let input = match rest.next()? {
        ">" => true,
        "<" => false,
        _ => return None,
    };
    Some(Line { input, at: rest.next()?.parse().ok()?, verb: rest.next()?, rest })
}

fn index(id: &str) -> Option<usize> {
    id.split_once('.')?.0.parse().ok()
}

impl Decisions {
    /// Reads a log. `number` is the number of the request of the dispatch with this index that has this name there;
    /// dispatches without one are left out. The log's times are on a clock that showed `shift` nanoseconds when
    /// the run began.
    pub fn read(log: String, shift: i128, mut number: impl FnMut(usize, &str) -> Option<u64>) -> Decisions {
        let run = |at: u64| Nanos(u64::try_from((i128::from(at) - shift).max(0)).unwrap_or(u64::MAX));
        let (mut list, mut scrapes, mut n) = (Vec::new(), Vec::new(), 0);
        for (i, text) in log.lines().enumerate() {
            let Some(mut l) = line(text) else { continue };
            match (l.input, l.verb) {
                (true, "scrape") => {
                    let taken: Option<u64> = l.rest.nth(1).and_then(|t| t.parse().ok());
                    scrapes.extend(taken.map(|t| Span(l.at.saturating_sub(t))));
                }
                (false, "dispatch") => {
                    n += 1;
                    let Some(number) = l.rest.next().and_then(|id| number(n - 1, id)) else { continue };
                    let Some(endpoint) = l.rest.next().and_then(index) else { continue };
                    let waited = Span(l.rest.next().and_then(|w| w.parse().ok()).unwrap_or(0));
                    list.push(Decision { number, at: run(l.at), endpoint: endpoint as u32, waited, line: i });
                }
                _ => {}
            }
        }
        Decisions { list, scrapes, log }
    }

    /// Keeps the dispatches only; what was known at them cannot be told any more.
    pub fn forget_log(&mut self) {
        self.log = String::new();
    }

    /// What was known at a decision, of a pool of so many endpoints.
    pub fn seen(&self, decision: &Decision, endpoints: usize) -> Seen {
        let mut seen = Seen { endpoints: vec![EndpointSeen::default(); endpoints], ..Seen::default() };
        let mut taken: Vec<Option<u64>> = vec![None; endpoints];
        // By the request's name: where it runs, and whether its first token is out.
        let mut running: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
        for text in self.log.lines().take(decision.line) {
            let Some(mut l) = line(text) else { continue };
            match (l.input, l.verb) {
                (true, "offer") => seen.queued += 1,
                (false, "end") => seen.queued = seen.queued.saturating_sub(1),
                (false, "cycle") => seen.saturation = l.rest.next().and_then(|s| s.parse().ok()),
                (true, "scrape") => {
                    let Some(i) = l.rest.next().and_then(index).filter(|i| *i < endpoints) else { continue };
                    taken[i] = l.rest.next().and_then(|t| t.parse().ok());
                    let mut value = || l.rest.next().and_then(|v| v.parse().ok()).unwrap_or(f64::NAN);
                    let e = &mut seen.endpoints[i];
                    (e.waiting, e.running, e.kv) = (value(), value(), value());
                }
                (false, "dispatch") => {
                    seen.queued = seen.queued.saturating_sub(1);
                    let (Some(id), Some(i)) = (l.rest.next(), l.rest.next().and_then(index)) else {
                        continue;
                    };
                    running.insert(id, (i, true));
                }
                (true, "first") => {
                    if let Some(r) = l.rest.next().and_then(|id| running.get_mut(id)) {
                        r.1 = false;
                    }
                }
                (true, "finished" | "failed" | "gone") => {
                    let was = l.rest.next().and_then(|id| running.remove(id));
                    // Who leaves without having been sent on leaves the queue.
                    seen.queued = seen.queued.saturating_sub(u64::from(was.is_none() && l.verb == "gone"));
                }
                _ => {}
            }
        }
        for (i, without) in running.into_values().filter(|(i, _)| *i < endpoints) {
            seen.endpoints[i].in_flight += 1;
            seen.endpoints[i].without_token += u32::from(without);
        }
        let now = self.log.lines().nth(decision.line).and_then(line).map_or(0, |l| l.at);
        for (e, taken) in seen.endpoints.iter_mut().zip(taken) {
            e.age = taken.map(|t| Span(now.saturating_sub(t)));
        }
        seen
    }
}

/// The number of a request out of the id that the load generator gives it.
pub fn number_of(request_id: &str) -> Option<u64> {
    request_id.rsplit_once('-')?.1.parse().ok()
}

/// The numbers of requests by their names in the decision log, out of an access log.
pub fn names(access_log: &str) -> BTreeMap<String, u64> {
    let one = |l: &str| {
        let v: Value = serde_json::from_str(l).ok()?;
        let name = v["decision"].as_str().filter(|n| !n.is_empty())?;
        Some((name.to_owned(), number_of(v["request_id"].as_str()?)?))
    };
    access_log.lines().filter_map(one).collect()
}

/// How alike the decisions of two routers are. Shares are of the requests that either of them dispatched, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alike {
    /// Requests that either dispatched.
    pub requests: u64,
    /// Same request to the same endpoint.
    pub endpoint: f64,
    /// Same request at the same place in the order of dispatch.
    pub place: f64,
    /// Both.
    pub all: f64,
    /// Of neighbours in the first one's order, both dispatched by the other, those in the same order there.
    pub neighbours: f64,
}

/// Compares the decisions of two routers.
pub fn alike(a: &[Decision], b: &[Decision]) -> Alike {
    let place = |list: &[Decision]| -> BTreeMap<u64, (usize, u32)> {
        list.iter().enumerate().map(|(i, d)| (d.number, (i, d.endpoint))).collect()
    };
    let (of_a, of_b) = (place(a), place(b));
    let only_b = of_b.keys().filter(|n| !of_a.contains_key(n)).count();
    let requests = (of_a.len() + only_b) as u64;
    let (mut endpoint, mut order, mut all) = (0_u64, 0_u64, 0_u64);
    for (number, (i, e)) in &of_a {
        let Some((j, f)) = of_b.get(number) else { continue };
        endpoint += u64::from(e == f);
        order += u64::from(i == j);
        all += u64::from((i, e) == (j, f));
    }
    let both: Vec<usize> = a.iter().filter_map(|d| Some(of_b.get(&d.number)?.0)).collect();
    let share = |n: u64, of: u64| if of == 0 { 1.0 } else { n as f64 / of as f64 };
    let pairs = both.len().saturating_sub(1) as u64;
    let kept = both.windows(2).filter(|w| w[0] < w[1]).count() as u64;
    Alike {
        requests,
        endpoint: share(endpoint, requests),
        place: share(order, requests),
        all: share(all, requests),
        neighbours: share(kept, pairs),
    }
}

/// The first place at which two routers decided differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parting {
    /// Decisions before it, all equal.
    pub place: usize,
    /// What each decided there; `None` if it had decided everything.
    pub there: [Option<Decision>; 2],
    /// What each decided, wherever, on the request that the first one dispatched there (or the second, if the
    /// first one had decided everything).
    pub request: [Option<Decision>; 2],
}

/// Where two routers part; `None` if they never do.
pub fn parting(a: &[Decision], b: &[Decision]) -> Option<Parting> {
    let same = |(x, y): &(&Decision, &Decision)| (x.number, x.endpoint) == (y.number, y.endpoint);
    let place = a.iter().zip(b).take_while(same).count();
    let there = [a.get(place).copied(), b.get(place).copied()];
    let number = there[0].or(there[1])?.number;
    let find = |list: &[Decision]| list.iter().find(|d| d.number == number).copied();
    Some(Parting { place, there, request: [find(a), find(b)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
forebay-decisions 1 seed=1 now=0
> 100 add a -
> 100 add b -
> 1000 scrape 1.0 400 2.0 5.0 0.25 16 100
> 2000 offer f 0 10 1 - 16 1 - '' '' '' - - -
< 2000 cycle 0.5 1.0 dispatch 0.0
< 2000 dispatch 0.0 1.0 0 0
> 2500 offer f 0 10 1 - 16 1 - '' '' '' - - -
> 2600 offer f 0 10 1 - 16 1 - '' '' '' - - -
> 2700 gone 2.0
> 3000 first 0.0
> 4000 scrape 0.0 3900 0.0 ? - 16 100
< 4100 cycle 0.75 1.0 dispatch 1.0
< 4100 dispatch 1.0 0.0 1600 0
> 5000 finished 0.0 1 1
";

    fn decisions() -> Decisions {
        Decisions::read(LOG.to_owned(), 1500, |_, id| {
            ["0.0", "1.0"].iter().position(|n| *n == id).map(|i| 7 + i as u64)
        })
    }

    fn of(list: &[(u64, u32)]) -> Vec<Decision> {
        list.iter()
            .map(|&(number, endpoint)| Decision {
                number,
                endpoint,
                at: Nanos::ZERO,
                waited: Span::ZERO,
                line: 0,
            })
            .collect()
    }

    #[test]
    fn dispatches_are_read_with_their_requests_on_the_clock_of_the_run() {
        let d = decisions();
        let told: Vec<_> = d.list.iter().map(|d| (d.number, d.at.0, d.endpoint, d.waited.0)).collect();
        assert_eq!(told, [(7, 500, 1, 0), (8, 2600, 0, 1600)]);
        assert_eq!(d.scrapes, [Span(600), Span(100)]);
        let some = Decisions::read(LOG.to_owned(), 0, |n, _| (n == 1).then_some(3));
        assert_eq!(some.list.len(), 1, "what has no number is left out");
    }

    #[test]
    fn what_a_router_saw_is_what_stands_before_its_decision() {
        let d = decisions();
        let first = d.seen(&d.list[0], 2);
        assert_eq!((first.queued, first.saturation), (1, Some(0.5)));
        assert_eq!(first.endpoints[0].age, None);
        let e = first.endpoints[1];
        assert_eq!((e.age, e.waiting, e.running, e.kv, e.in_flight), (Some(Span(1600)), 2.0, 5.0, 0.25, 0));
        let second = d.seen(&d.list[1], 2);
        assert_eq!((second.queued, second.saturation), (1, Some(0.75)), "one left the queue by itself");
        assert_eq!((second.endpoints[1].in_flight, second.endpoints[1].without_token), (1, 0));
        assert!(second.endpoints[0].running.is_nan() && second.endpoints[0].waiting == 0.0);
    }

    #[test]
    fn requests_are_matched_by_the_id_that_the_generator_gave() {
        assert_eq!((number_of("0badcafe-12"), number_of("x"), number_of("a-b")), (Some(12), None, None));
        let log = "{\"request_id\":\"01-4\",\"decision\":\"2.0\"}\n{\"request_id\":\"01-5\"}\nrubbish\n\
                   {\"request_id\":\"probe\",\"decision\":\"3.0\"}\n{\"request_id\":\"01-6\",\"decision\":\"2.1\"}\n";
        let all: Vec<_> = names(log).into_iter().collect();
        assert_eq!(all, [("2.0".to_owned(), 4), ("2.1".to_owned(), 6)]);
    }

    #[test]
    fn shares_count_endpoints_places_and_neighbours() {
        let a = of(&[(0, 0), (1, 1), (2, 0), (3, 1)]);
        assert_eq!(
            alike(&a, &a),
            Alike { requests: 4, endpoint: 1.0, place: 1.0, all: 1.0, neighbours: 1.0 }
        );
        // 1 and 2 have changed places, 3 its endpoint, 4 is new.
        let b = of(&[(0, 0), (2, 0), (1, 1), (3, 0), (4, 0)]);
        let got = alike(&a, &b);
        assert_eq!((got.requests, got.endpoint, got.place, got.all), (5, 0.6, 0.4, 0.2));
        assert_eq!(got.neighbours, 2.0 / 3.0);
        assert_eq!(alike(&[], &[]).all, 1.0, "nothing is different about nothing");
    }

    #[test]
    fn the_first_difference_is_told_with_what_each_did_about_its_request() {
        let a = of(&[(0, 0), (1, 1), (2, 0)]);
        assert_eq!(parting(&a, &a), None);
        let b = of(&[(0, 0), (2, 0), (1, 0)]);
        let p = parting(&a, &b).unwrap();
        assert_eq!((p.place, p.there.map(|d| d.unwrap().number)), (1, [1, 2]));
        assert_eq!(p.request.map(|d| d.unwrap().endpoint), [1, 0]);
        let shorter = parting(&a, &b[..1]).unwrap();
        assert_eq!((shorter.place, shorter.there[1], shorter.request[1]), (1, None, None));
        let more = parting(&a[..1], &a).unwrap();
        assert_eq!((more.there[0], more.request[1].unwrap().number), (None, 1));
    }
}
