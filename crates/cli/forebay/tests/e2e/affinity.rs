//! Requests that belong together reach one endpoint: sessions, coding agents, LoRA adapters.

use crate::process::{Process, Scratch, until};
use crate::queueing::BODY;
use crate::upstream::Upstream;
use http::StatusCode;
use std::collections::BTreeSet;

fn config(plugins: &str) -> Scratch {
    Scratch::new(
        "affinity.yaml",
        &format!(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nplugins:\n\
             - type: utilization-detector\n  parameters: {{metricsStalenessThreshold: 5s}}\n{plugins}"
        ),
    )
}

/// A router over these endpoints, all of them seen. What is left to chance is drawn by request number from
/// this seed, so the spreads below are the same in every run.
async fn router(urls: &[&str], config: &Scratch) -> Process {
    let mut arguments = vec!["--config", config.path(), "--seed", "1", "--access-log", "off"];
    arguments.extend(["--allow-experimental-plugins"]);
    for u in urls {
        arguments.extend(["--endpoint", u]);
    }
    let p = Process::serve(&arguments).await;
    p.ready().await;
    until("all have been seen", async || p.saturation().await == 0.0).await;
    p
}

/// Where a request with this header is answered, and the token that the answer gives.
async fn served(p: &Process, header: Option<(&str, &str)>) -> (String, String) {
    let body = r#"{"model":"tiny","prompt":"hello","max_tokens":1}"#;
    let answer = p.post("/v1/completions", header.as_slice(), body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let at = answer.header("x-gateway-destination-endpoint-served").to_owned();
    (at, answer.header("x-session-token").to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_leads_back_to_the_endpoint_that_gave_it() {
    let (a, b) = (Process::emulate(&["--model", "tiny"]).await, Process::emulate(&["--model", "tiny"]).await);
    let config = config("- type: session-affinity-filter\n");
    let p = router(&[&a.url(), &b.url()], &config).await;
    let mut tokens = std::collections::BTreeMap::new();
    for _ in 0..20 {
        let (at, token) = served(&p, None).await;
        assert!(!token.is_empty());
        assert_eq!(*tokens.entry(at).or_insert_with(|| token.clone()), token, "one token per endpoint");
    }
    assert_eq!(tokens.len(), 2, "without a token requests spread");
    for (at, token) in &tokens {
        for _ in 0..10 {
            assert_eq!(served(&p, Some(("x-session-token", token))).await, (at.clone(), token.clone()));
        }
    }
    // What cannot be read, or names nobody, is as no token.
    for bad in ["%%%", "bm9ib2R5"] {
        assert!(tokens.contains_key(&served(&p, Some(("x-session-token", bad))).await.0));
    }
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_stays_where_it_began() {
    let (a, b) = (Process::emulate(&["--model", "tiny"]).await, Process::emulate(&["--model", "tiny"]).await);
    let config = config("- {type: session-affinity-filter, parameters: {strategy: session_id}}\n");
    let p = router(&[&a.url(), &b.url()], &config).await;
    let mut homes = BTreeSet::new();
    for session in 0..16 {
        let session = session.to_string();
        let home = served(&p, Some(("x-session-id", &session))).await.0;
        for _ in 0..3 {
            assert_eq!(served(&p, Some(("x-session-id", &session))).await.0, home, "session {session}");
        }
        homes.insert(home);
    }
    assert_eq!(homes.len(), 2, "sessions spread");
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coding_agent_is_a_flow_and_a_session() {
    let (a, b) = (Process::emulate(&["--model", "tiny"]).await, Process::emulate(&["--model", "tiny"]).await);
    let config = config(
        "- type: agent-identity\n- type: session-affinity-scorer\n  parameters: {strategy: session_id, sessionIdConfig: \
         {sources: [{attribute: agent-identity}]}}\n",
    );
    let p = router(&[&a.url(), &b.url()], &config).await;
    let mut homes = BTreeSet::new();
    for agent in 0..16 {
        let agent = format!("agent-{agent}");
        let home = served(&p, Some(("x-claude-code-session-id", &agent))).await.0;
        for _ in 0..2 {
            assert_eq!(served(&p, Some(("x-claude-code-session-id", &agent))).await.0, home, "{agent}");
        }
        homes.insert(home);
    }
    assert_eq!(homes.len(), 2, "agents spread");
    // Whoever names a flow is in that one.
    let both = [("session-id", "agent-0"), ("x-llm-d-inference-fairness-id", "mine")];
    let body = r#"{"model":"tiny","prompt":"hello","max_tokens":1}"#;
    assert_eq!(p.post("/v1/completions", &both, body).await.status, StatusCode::OK);
    let m = p.metrics().await;
    let requests = |flow: &str| -> f64 {
        let of = |k: &str| {
            k.starts_with("llm_d_epp_request_total{") && k.contains(&format!("fairness_id=\"{flow}\""))
        };
        m.iter().filter(|(k, _)| of(k)).map(|(_, v)| v).sum()
    };
    assert_eq!((requests("agent-0"), requests("agent-15"), requests("mine")), (3.0, 3.0, 1.0));
    p.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_is_asked_for_where_it_runs_then_where_there_is_room_then_where_it_waits() {
    let config = config("- type: lora-affinity-scorer\n");
    let upstreams = [Upstream::start().await, Upstream::start().await, Upstream::start().await];
    let [runs, room, waits] = &upstreams;
    runs.adapters("one", "", 1);
    room.adapters("other", "", 2);
    waits.adapters("other", "one,two", 2);
    let p = router(&[&runs.url, &room.url, &waits.url], &config).await;
    for (model, wanted) in [("one", &runs.authority), ("two", &room.authority)] {
        for _ in 0..10 {
            let answer = p.post("/v1/completions", &[], BODY.replace("\"m\"", &format!("\"{model}\""))).await;
            assert_eq!(answer.header("x-gateway-destination-endpoint-served"), wanted, "{model}");
        }
    }
    // The room is gone: now it waits where it waits already.
    room.adapters("other,third", "", 2);
    until("the router has heard", async || {
        let answer = p.post("/v1/completions", &[], BODY.replace("\"m\"", "\"two\"")).await;
        answer.header("x-gateway-destination-endpoint-served") == waits.authority
    })
    .await;
    p.settles().await;
}
