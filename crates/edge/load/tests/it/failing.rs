//! Servers that hang, die, or are not there: every request still has its record.

use crate::{checked, run, workload};
use forebay_base::Span;
use forebay_load::{LoadError, Options, Server, Style, Url, Watch, Words, observe};
use forebay_records::End;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// A server that does `act` with each connection, on a thread for each.
fn misbehaving(act: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let act = act.clone();
            std::thread::spawn(move || act(stream));
        }
    });
    address
}

fn known(address: &str, style: Style) -> Server {
    Server {
        url: Url::parse(&format!("http://{address}")).unwrap(),
        address: address.to_owned(),
        style,
        model: "m".into(),
        max_model_len: None,
        words: Words::default(),
        calibration: forebay_load::Calibration::default(),
    }
}

const CLASS: &str = "arrivals: {process: constant, phase: 0, rate: 50}, input: 20, output: 3";

/// Reads and never answers, until the client leaves.
fn hang(mut stream: TcpStream) {
    while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
}

#[test]
fn a_hung_server_leaves_censored_records() {
    let address = misbehaving(hang);
    let w = workload("window: 200ms, drain: 300ms", CLASS);
    let o = run(&w, &known(&address, Style::new(&w)));
    assert_eq!(o.records.len(), 10);
    assert!(o.rows().all(|r| r.end == End::Censored && r.finished.is_none()));
    assert!(o.ended_at.0 >= 500_000_000, "{}", o.ended_at);
    assert!(o.records.iter().all(|r| r.live.sent.is_some()));
}

#[test]
fn clients_give_up_in_their_time() {
    let address = misbehaving(hang);
    let w = workload("window: 200ms, drain: 30s", &format!("{CLASS}, timeout: 50ms"));
    let o = run(&w, &known(&address, Style::new(&w)));
    for r in o.rows() {
        assert_eq!(r.end, End::TimedOut);
        assert!(r.finished.unwrap() >= r.arrived + Span::millis(50));
    }
    assert_eq!(o.records.len(), 10);
}

#[test]
fn a_cut_ends_a_run_at_once() {
    let address = misbehaving(hang);
    let w = workload("window: 60s, drain: 60s", CLASS);
    let (s, watch) = (known(&address, Style::new(&w)), Watch::new());
    let o = std::thread::scope(|scope| {
        let run = scope.spawn(|| observe(&w, &s, &Options::new(1, 1), &watch).unwrap());
        while watch.look().is_none_or(|v| v.open < 5) {
            std::thread::yield_now();
        }
        watch.cut();
        checked(run.join().unwrap())
    });
    assert!(o.records.len() >= 5 && o.rows().all(|r| r.end == End::Censored));
}

#[test]
fn a_server_that_dies_in_mid_answer_is_a_failure() {
    let address = misbehaving(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let event = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = write!(stream, "{head}{:x}\r\n{event}\r\n", event.len());
    });
    let w = workload("window: 200ms, drain: 5s", CLASS);
    let o = run(&w, &known(&address, Style::new(&w)));
    assert_eq!(o.records.len(), 10);
    for r in &o.records {
        assert_eq!((r.row.end, r.live.error, r.live.chunks), (End::Failed, Some("broke-off"), 1));
    }
}

#[test]
fn nobody_there_is_told_before_and_recorded_during() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let w = workload("window: 200ms, drain: 5s", CLASS);
    let url = Url::parse(&format!("http://{address}")).unwrap();
    let e = Server::find(url, Style::new(&w), None, Words::default()).unwrap_err();
    assert!(matches!(e, LoadError::Probe { .. }) && e.to_string().contains("refused"), "{e}");
    let o = run(&w, &known(&address, Style::new(&w)));
    assert!(o.records.iter().all(|r| r.live.error == Some("connection-refused")), "{:?}", o.troubles);
    assert_eq!(o.troubles["connection-refused"].count, 10);
}
