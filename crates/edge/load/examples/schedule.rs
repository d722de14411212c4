//! How well the schedule is kept against a server that does nothing but answer, in a process of its own:
//! `cargo run --release -p forebay-load --example schedule -- 20000 10` for 20 000 requests/s over ten seconds.
//! A third number is that of the threads that send. `-- serve ADDRESS` starts the server alone, for other load generators.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a tool that prints, and stops where it cannot go on"
)]

use forebay_load::{Options, Server, Style, Url, Watch, Words, observe};
use forebay_workload::Workload;
use std::io::{BufRead, BufReader as LineReader};
use std::process::{Command, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

// As in the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n";
const WHOLE: &str = "{\"data\":[{\"id\":\"trivial\",\"max_model_len\":4096}],\"choices\":[{\"message\":{\"content\":\" word\"}}],\
    \"usage\":{\"prompt_tokens\":20,\"completion_tokens\":1}}";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == "serve") {
        let address = arguments.get(1).map_or("127.0.0.1:0", String::as_str);
        return tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(serve(address));
    }
    let number = |i: usize, default: u64| arguments.get(i).map_or(default, |a| a.parse().unwrap());
    let threads = Options::new(1, 1).threads as u64;
    let (rate, seconds, threads) = (number(0, 20_000), number(1, 10), number(2, threads) as usize);
    let mut server =
        Command::new(std::env::current_exe().unwrap()).arg("serve").stdout(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    LineReader::new(server.stdout.take().unwrap()).read_line(&mut address).unwrap();
    for process in ["constant, phase: 0", "poisson"] {
        run(address.trim(), process, rate, seconds, threads);
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

fn run(address: &str, process: &str, rate: u64, seconds: u64, threads: usize) {
    let text = format!(
        "version: 1\nname: t\nmode: {{kind: surge, window: {seconds}s, drain: 10s}}\nclasses:\n  a: {{arrivals: {{process: {process}, rate: {rate}}}, input: 20, output: 1}}\n"
    );
    let w = Workload::read(&text, "t").unwrap();
    let url = Url::parse(&format!("http://{address}")).unwrap();
    let server = Server::find(url, Style::new(&w), None, Words::default()).unwrap();
    let options = Options { threads, ..Options::new(1, 1) };
    let o = observe(&w, &server, &options, &Watch::new()).unwrap();
    let s = o.schedule;
    let us = |x: Option<forebay_base::Span>| x.map_or(f64::NAN, |x| x.0 as f64 / 1e3);
    let finished = o.rows().filter(|r| r.is_finished()).count();
    println!(
        "{process}: offered {:.0}/s, sent {:.0}/s, lag p50 {:.0} us, p99 {:.0} us, max {:.0} us, {finished} of {} finished, {:.2} cores, {}",
        s.offered_rate(),
        s.sent_rate(),
        us(s.lag_p50),
        us(s.lag_p99),
        us(s.lag_max),
        o.records.len(),
        o.cpu.0 as f64 / o.ended_at.0 as f64,
        if s.problems().is_empty() { "valid" } else { "INVALID" }
    );
}

async fn serve(address: &str) {
    let listener = TcpListener::bind(address).await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer(stream));
    }
}

/// Answers requests whose head and body fit 64 KiB, whatever they ask.
async fn answer(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let answers = [("application/json", WHOLE), ("text/event-stream", STREAM)].map(|(kind, body)| {
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    });
    let mut buffer = vec![0; 1 << 16];
    let mut held = 0;
    loop {
        let n = stream.read(&mut buffer[held..]).await.ok().filter(|n| *n > 0)?;
        held += n;
        let Some(head) = buffer[..held].windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&buffer[..head]).ok()?.to_ascii_lowercase();
        let length =
            text.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok()).unwrap_or(0);
        if held < head + 4 + length {
            continue;
        }
        let streamed =
            buffer[head..held].windows(13).any(|w| w == b"\"stream\":true" || w == b"\"stream\": tru");
        stream.write_all(answers[usize::from(streamed)].as_bytes()).await.ok()?;
        held = 0;
    }
}
