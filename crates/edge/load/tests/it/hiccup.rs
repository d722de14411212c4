//! What happens when requests come due faster than they can leave.

use crate::{checked, server, workload};
use forebay_base::Span;
use forebay_load::{Options, Style, Watch, observe};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const EVENTS: &str = "data: {\"choices\":[{\"delta\":{\"content\":\" x\"},\"finish_reason\":\"length\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";

/// Answers every request of a connection at once.
fn answer(stream: TcpStream) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let (mut lists, mut length) = (false, 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            lists |= line.starts_with("GET");
            if let Some(n) = line.strip_prefix("content-length: ") {
                length = n.trim().parse().ok()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        stream.read_exact(&mut vec![0; length]).ok()?;
        let (kind, body) = if lists {
            ("application/json", "{\"data\":[{\"id\":\"m\"}]}")
        } else {
            ("text/event-stream", EVENTS)
        };
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
        out.write_all((head + body).as_bytes()).ok()?;
    }
}

/// Two thousand requests within a tenth of a second, from one thread. Those that cannot leave at once take the connections
/// of those that come back, and all of them end.
#[test]
fn a_burst_reuses_connections_and_everything_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let opened = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&opened);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || answer(stream));
        }
    });
    let w = workload(
        "window: 100ms, drain: 60s",
        "arrivals: {process: constant, phase: 0, rate: 20000}, input: 20, output: 1",
    );
    let s = server(&address, Style::new(&w)).unwrap();
    let o = checked(observe(&w, &s, &Options { threads: 1, ..Options::new(1, 7) }, &Watch::new()).unwrap());
    assert_eq!(o.records.len(), 2000);
    for r in &o.records {
        assert!(r.row.is_finished(), "{r:?} {:?}", o.troubles);
        assert!(r.live.sent.unwrap() >= r.row.arrived && r.lag().unwrap() < Span::secs(60));
    }
    // Each request on a connection of its own would be 2000, beside the one that asked for the models.
    assert!(opened.load(Ordering::SeqCst) < 1000, "{opened:?} connections");
}

/// What the system does not take at once is sent as it takes more.
#[test]
fn prompts_larger_than_any_buffer_arrive_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    let w = workload(
        "window: 200ms, drain: 120s",
        "arrivals: {process: constant, phase: 0, rate: 20}, input: 2000000, output: 1",
    );
    let s = server(&address, Style::new(&w)).unwrap();
    let o = checked(observe(&w, &s, &Options { threads: 1, ..Options::new(1, 7) }, &Watch::new()).unwrap());
    assert_eq!(o.records.len(), 4);
    assert!(o.rows().all(forebay_records::Row::is_finished), "{:?}", o.troubles);
}

/// A server that closes each connection after its answer, without having said so, costs no request.
#[test]
fn connections_that_are_closed_while_unused_are_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut once = stream.try_clone().unwrap();
                let mut buffer = [0; 8192];
                let n = once.read(&mut buffer).unwrap_or(0);
                let lists = buffer[..n].starts_with(b"GET");
                let (kind, body) = if lists {
                    ("application/json", "{\"data\":[{\"id\":\"m\"}]}")
                } else {
                    ("text/event-stream", EVENTS)
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                let _ = once.write_all((head + body).as_bytes());
            });
        }
    });
    let w = workload(
        "window: 400ms, drain: 60s",
        "arrivals: {process: constant, phase: 0, rate: 100}, input: 20, output: 1",
    );
    let s = server(&address, Style::new(&w)).unwrap();
    let o = checked(observe(&w, &s, &Options { threads: 1, ..Options::new(1, 7) }, &Watch::new()).unwrap());
    assert_eq!(o.records.len(), 40);
    assert!(o.rows().all(forebay_records::Row::is_finished), "{:?}", o.troubles);
}
