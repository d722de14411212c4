//! What a real system does not repeat, drawn for a run: when scrapes fall and how long the network takes.
//! Ties between endpoints and the places of scrapes vary with the run's seed by themselves.

use forebay_base::{Draws, Purpose, Span};
use forebay_sim::Cluster;

const NETWORK: Purpose = Purpose::named("study-network");

/// The cluster with the network's delays multiplied by factors between 1/2 and 3/2 that the seed draws.
#[must_use]
pub fn network(cluster: &Cluster, seed: u64) -> Cluster {
    let draws = Draws::new(seed);
    let times =
        |span: Span, lane| Span((span.0 as f64 * (0.5 + draws.unit(NETWORK, 0, lane))).round() as u64);
    let mut varied = cluster.clone();
    varied.network.to_engine = times(cluster.network.to_engine, 0);
    varied.network.to_client = times(cluster.network.to_client, 1);
    varied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_around_what_they_were() {
        let cluster = Cluster::parse("h100", "qwen3-14b", "", |_| {}).unwrap();
        let delays: Vec<f64> =
            (0..200).map(|s| network(&cluster, s).network.to_engine.0 as f64 / 1e6).collect();
        let mean = delays.iter().sum::<f64>() / 200.0;
        assert!(delays.iter().all(|d| (0.5..=1.5).contains(d)) && (0.9..1.1).contains(&mean));
        assert_eq!(network(&cluster, 7).network, network(&cluster, 7).network);
    }
}
