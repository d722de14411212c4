//! A server that follows a script and notes when it did what.

use forebay_wire::headers::REQUEST_ID;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What every request is answered with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Before the first chunk.
    pub(crate) first: Duration,
    /// Between chunks.
    pub(crate) gap: Duration,
    pub(crate) chunks: u32,
    /// What a chunk's choice says.
    pub(crate) delta: &'static str,
    /// Tokens of each chunk, for the usage at the end; none without it.
    pub(crate) usage: Option<u32>,
}

/// Nanoseconds from the request to each chunk, by request id.
pub(crate) type Notes = Arc<Mutex<BTreeMap<String, Vec<u64>>>>;

pub(crate) struct Scripted {
    pub(crate) address: String,
    pub(crate) notes: Notes,
    _runtime: tokio::runtime::Runtime,
}

impl Scripted {
    pub(crate) fn start(script: Script) -> Scripted {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let notes = Notes::default();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::clone(&notes);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script, Arc::clone(&shared)));
            }
        });
        Scripted { address, notes, _runtime: runtime }
    }
}

/// Reads a request's head and body; gives its path and its id.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut path, mut id, mut length) = (String::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case(REQUEST_ID) => value.clone_into(&mut id),
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok()?;
            }
            Some(_) => {}
            None => line.split(' ').nth(1)?.clone_into(&mut path),
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((path, id))
}

async fn serve(stream: TcpStream, script: Script, notes: Notes) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let (path, id) = request(&mut stream).await?;
        let came = Instant::now();
        if path == "/v1/models" {
            let body = r#"{"data":[{"id":"scripted"}]}"#;
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.ok()?;
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.ok()?;
        for i in 0..script.chunks {
            tokio::time::sleep_until((came + script.first + script.gap * i).into()).await;
            let event = format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{{{}}},\"finish_reason\":null}}]}}\n\n",
                script.delta
            );
            notes.lock().unwrap().entry(id.clone()).or_default().push(came.elapsed().as_nanos() as u64);
            chunk(&mut stream, &event).await?;
        }
        let mut end =
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n".to_owned();
        if let Some(per_chunk) = script.usage {
            let tokens = per_chunk * script.chunks;
            let usage = format!(
                "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{tokens}}}}}\n\n"
            );
            end.push_str(&usage);
        }
        chunk(&mut stream, &(end + "data: [DONE]\n\n")).await?;
        stream.write_all(b"0\r\n\r\n").await.ok()?;
    }
}

async fn chunk(stream: &mut BufReader<TcpStream>, text: &str) -> Option<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await.ok()
}
