//! A client that sends one request per connection, or several on one.

use bytes::Bytes;
use forebay_emulate::Emulator;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// A connection.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    pub(crate) async fn connect(emulator: &Emulator) -> std::io::Result<Client> {
        let stream = TcpStream::connect(emulator.addr()).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Client { sender, task })
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> hyper::Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path).header("host", "test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await?;
        self.sender.send_request(request.body(Full::new(body.into())).unwrap()).await
    }

    /// Drops the connection as a client that goes away does.
    pub(crate) fn leave(self) {
        self.task.abort();
    }
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The events of a stream without the final `[DONE]`, which must be there.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut data: Vec<&str> = self
            .body
            .split("\n\n")
            .filter(|e| !e.is_empty())
            .map(|e| e.strip_prefix("data: ").unwrap())
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"));
        data.iter().map(|d| serde_json::from_str(d).unwrap_or_else(|e| panic!("{e}: {d}"))).collect()
    }
}

pub(crate) async fn collect(response: Response<Incoming>) -> hyper::Result<Answer> {
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await?.to_bytes().to_vec()).unwrap();
    Ok(Answer { status: parts.status, headers: parts.headers, body })
}

pub(crate) async fn get(emulator: &Emulator, path: &str) -> Answer {
    let mut client = Client::connect(emulator).await.unwrap();
    collect(client.send("GET", path, &[], "").await.unwrap()).await.unwrap()
}

pub(crate) async fn post(emulator: &Emulator, path: &str, body: impl ToString) -> Answer {
    post_with(emulator, path, &[], body).await
}

pub(crate) async fn post_with(
    emulator: &Emulator,
    path: &str,
    headers: &[(&str, &str)],
    body: impl ToString,
) -> Answer {
    let mut client = Client::connect(emulator).await.unwrap();
    collect(client.send("POST", path, headers, body.to_string()).await.unwrap()).await.unwrap()
}
