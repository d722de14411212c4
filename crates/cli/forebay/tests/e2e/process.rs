//! A `forebay` process and what tests do with it.

use bytes::Bytes;
use forebay_net::{Client, ClientOptions};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};

/// Longer than anything here takes; a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a condition that the other side brings about.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "never came true: {what}");
}

/// A file that goes with the test.
pub(crate) struct Scratch(pub(crate) std::path::PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, text: &str) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("forebay-e2e-{}-{n}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) fn request(path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Bytes> {
    let mut r = Request::post(path).header("content-type", "application/json");
    for (name, value) in headers {
        r = r.header(*name, *value);
    }
    r.body(body.into()).unwrap()
}

pub(crate) async fn send(address: &str, request: Request<Bytes>) -> Answer {
    let client = Client::new(ClientOptions::default());
    let response = client.send(address, request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: head.status, headers: head.headers, body }
}

pub(crate) async fn get(address: &str, path: &str) -> Answer {
    send(address, Request::get(path).body(Bytes::new()).unwrap()).await
}

/// A running `forebay serve` or `forebay emulate`.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) api: String,
    pub(crate) admin: String,
}

impl Process {
    /// Starts `forebay serve`, with its log in a file.
    pub(crate) async fn serve_logged(arguments: &[&str], log: &Scratch) -> Process {
        let ports = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log", "info"];
        let file = std::fs::File::create(&log.0).unwrap();
        Process::start(&[&ports, arguments].concat(), file.into()).await
    }

    /// Starts `forebay serve` on free ports and waits for its ready line.
    pub(crate) async fn serve(arguments: &[&str]) -> Process {
        let ports = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log", "warn"];
        Process::start(&[&ports, arguments].concat(), Stdio::inherit()).await
    }

    pub(crate) async fn emulate(arguments: &[&str]) -> Process {
        Process::start(
            &[&["emulate", "--listen", "127.0.0.1:0", "--log", "warn"], arguments].concat(),
            Stdio::inherit(),
        )
        .await
    }

    async fn start(arguments: &[&str], stderr: Stdio) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = async {
            loop {
                let line = lines.next_line().await.unwrap().expect("the process printed its ready line");
                if let Some(ready) = line.strip_prefix("forebay ready: ") {
                    return ready.to_owned();
                }
            }
        };
        let ready = tokio::time::timeout(PATIENCE, ready).await.unwrap();
        let mut addresses = ready.split_whitespace().filter_map(|w| w.strip_prefix("http://"));
        let api = addresses.next().unwrap().to_owned();
        let admin = addresses.next().unwrap_or_default().to_owned();
        Process { child, lines, api, admin }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    /// The next line of the access log that is about `path`.
    pub(crate) async fn access(&mut self) -> serde_json::Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap();
        serde_json::from_str(&line.expect("an access line")).unwrap()
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        send(&self.api, request(path, headers, body)).await
    }

    /// Metrics by series.
    pub(crate) async fn metrics(&self) -> BTreeMap<String, f64> {
        let address = if self.admin.is_empty() { &self.api } else { &self.admin };
        let answer = get(address, "/metrics").await;
        answer
            .text()
            .lines()
            .filter(|l| !l.starts_with('#'))
            .filter_map(|l| {
                let (series, value) = l.rsplit_once(' ')?;
                Some((series.to_owned(), value.parse().ok()?))
            })
            .collect()
    }

    /// The saturation that gates.
    pub(crate) async fn saturation(&self) -> f64 {
        let series = "llm_d_epp_flow_control_pool_saturation{inference_pool=\"default\",stage=\"effective\"}";
        self.metric(series).await
    }

    pub(crate) async fn metric(&self, series: &str) -> f64 {
        self.metrics().await.get(series).copied().unwrap_or(f64::NAN)
    }

    /// Whether nothing lives any more, every ledger adds up, and every counter of what is going on is at
    /// zero.
    pub(crate) async fn settled(&self) -> bool {
        let m = self.metrics().await;
        let sum =
            |prefix: &str| -> f64 { m.iter().filter(|(k, _)| k.starts_with(prefix)).map(|(_, v)| v).sum() };
        let outcomes = m.iter().filter_map(|(k, v)| {
            let outcome = k.strip_prefix("forebay_queue_outcomes_total{outcome=\"")?.strip_suffix("\"}")?;
            let flow = format!("llm_d_epp_flow_control_requests_total{{outcome=\"{outcome}\"");
            Some((sum(&flow), *v))
        });
        let zero = [
            "forebay_http_requests_open",
            "forebay_requests_live",
            "forebay_requests_queued",
            "forebay_open_streams",
            "forebay_buffered_bytes",
            "forebay_endpoint_inflight_requests",
            "forebay_endpoint_pending_requests",
            "llm_d_epp_request_running",
            "llm_d_epp_inflight_requests",
            "llm_d_epp_inflight_tokens",
            "llm_d_epp_flow_control_queue_size",
            "llm_d_epp_flow_control_queue_bytes",
        ];
        let still = |name: &str| m.iter().any(|(k, v)| k.split('{').next() == Some(name) && *v != 0.0);
        !zero.into_iter().any(still)
            && m["forebay_http_requests_accepted_total"] == sum("forebay_http_requests_ended_total")
            && m["forebay_requests_accepted_total"] == sum("forebay_requests_ended_total")
            && m["forebay_queue_entered_total"] == sum("forebay_queue_outcomes_total")
            && outcomes.into_iter().all(|(flow, kernel)| flow == kernel)
    }

    /// Waits until it is [`Process::settled`].
    pub(crate) async fn settles(&self) {
        until("all has ended and every ledger adds up", async || self.settled().await).await;
    }

    pub(crate) async fn ready(&self) {
        until("the router is ready", async || get(&self.admin, "/readyz").await.status == StatusCode::OK)
            .await;
    }

    pub(crate) fn terminate(&self) {
        let id = self.child.id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }

    /// The access lines that are left, of a process that has ended.
    pub(crate) async fn rest_of_access(&mut self) -> Vec<serde_json::Value> {
        let mut out = Vec::new();
        while let Some(line) = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap()
        {
            out.push(serde_json::from_str(&line).unwrap());
        }
        out
    }

    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap().code()
    }
}

/// A connection over which a request has been written by hand, so that the client can leave when it
/// wants to.
pub(crate) struct Raw {
    stream: TcpStream,
}

impl Raw {
    pub(crate) async fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Raw {
        let mut head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        Raw::write(address, &format!("{head}\r\n{body}")).await
    }

    pub(crate) async fn write(address: &str, bytes: &str) -> Raw {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        Raw { stream }
    }

    /// Reads until what came contains `text`.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        let mut got = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let n = tokio::time::timeout(PATIENCE, self.stream.read(&mut buffer)).await.unwrap().unwrap();
            assert!(n > 0, "the answer ended before {text:?}: {}", String::from_utf8_lossy(&got));
            got.extend_from_slice(&buffer[..n]);
            let so_far = String::from_utf8_lossy(&got);
            if so_far.contains(text) {
                return so_far.into_owned();
            }
        }
    }

    /// Writes more.
    pub(crate) async fn try_more(&mut self, bytes: &str) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_bytes()).await
    }

    /// Says that nothing more will be written, and goes on reading.
    pub(crate) async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Reads until the connection closes.
    pub(crate) async fn rest(mut self) -> String {
        let mut got = Vec::new();
        // A reset after the answer counts as a close.
        let _ = tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut got)).await.unwrap();
        String::from_utf8_lossy(&got).into_owned()
    }
}
