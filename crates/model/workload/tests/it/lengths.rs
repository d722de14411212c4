//! Token counts.

use crate::{all, cv, mean, one};
use forebay_base::Purpose;
use forebay_workload::{Dist, Shape, Stream, normal_quantile};

fn drawn(shape: Shape, clamp: Option<(f64, f64)>) -> Vec<f64> {
    let (dist, stream) = (Dist { shape, clamp }, Stream::new(1, "lengths"));
    (0..200_000).map(|i| f64::from(dist.tokens(stream, Purpose::named("t"), i))).collect()
}

#[test]
fn normal_quantiles_are_those_of_the_tables() {
    // Python's statistics.NormalDist().inv_cdf, checked against Abramowitz and Stegun, table 26.5.
    for (p, z) in [
        (0.5, 0.0),
        (0.975, 1.959_963_984_540_054),
        (0.999, 3.090_232_306_167_813),
        (0.01, -2.326_347_874_040_841),
        (1e-10, -6.361_340_902_404_056),
        (1e-15, -7.941_345_326_170_999),
    ] {
        assert!((normal_quantile(p) - z).abs() < 1e-14 * z.abs().max(1.0), "{p}: {}", normal_quantile(p));
    }
}

#[test]
fn means_and_spreads_are_those_of_the_distributions() {
    // Mean and coefficient of variation by formula; 200 000 draws, so the mean is within about 1 %.
    let sigma = 0.7033f64;
    for (shape, m, c) in [
        (Shape::Constant(512.0), 512.0, 0.0),
        (Shape::Uniform(10.0, 20.0), 15.0, 10f64.sqrt() / 15.0),
        (Shape::Normal(300.0, 50.0), 300.0, 1.0 / 6.0),
        (Shape::Lognormal(7.0659, sigma), 1500.4, 0.7995),
        (Shape::Exponential(1000.0), 1000.0, 1.0),
    ] {
        let v = drawn(shape.clone(), None);
        assert!((mean(&v) / m - 1.0).abs() < 0.01, "{shape:?}: {}", mean(&v));
        assert!((cv(&v) - c).abs() < 0.02, "{shape:?}: {}", cv(&v));
    }
}

#[test]
fn every_whole_number_of_a_uniform_is_as_likely() {
    let v = drawn(Shape::Uniform(3.0, 6.0), None);
    for n in 3..=6 {
        let share = v.iter().filter(|x| **x == f64::from(n)).count() as f64 / v.len() as f64;
        assert!((share - 0.25).abs() < 0.005, "{n}: {share}");
    }
}

#[test]
fn empirical_draws_have_their_weights_and_no_others() {
    let dist = Dist::empirical(vec![(300.0, 3.0), (100.0, 1.0), (200.0, 0.0)]).unwrap();
    let v = drawn(dist.shape, None);
    assert!(v.iter().all(|x| *x == 100.0 || *x == 300.0));
    assert!((mean(&v) - 250.0).abs() < 1.0);
    assert_eq!(Dist::empirical(vec![(1.0, 0.0)]), None);
    assert_eq!(Dist::empirical(vec![(-1.0, 1.0)]), None);
}

#[test]
fn bounds_hold_and_take_what_lies_beyond() {
    let v = drawn(Shape::Lognormal(5.2711, 1.2498), Some((50.0, 10_000.0)));
    assert!(v.iter().all(|x| (50.0..=10_000.0).contains(x)));
    // P(X < 50.5) = Phi((ln 50.5 - 5.2711) / 1.2498) = Phi(-1.0796) = 0.1402.
    let at_bound = v.iter().filter(|x| **x == 50.0).count() as f64 / v.len() as f64;
    assert!((at_bound - 0.1402).abs() < 0.003, "{at_bound}");
    assert!(drawn(Shape::Constant(0.2), None).iter().all(|x| *x == 1.0), "a request has a token");
}

#[test]
fn a_class_draws_input_and_output_apart() {
    let w = one(
        "1000s",
        "arrivals: {process: constant, rate: 10}, input: {uniform: [1, 1000]}, output: {uniform: [1, 1000]}",
    );
    let a = all(&w, 3);
    let (x, y): (Vec<f64>, Vec<f64>) =
        a.iter().map(|a| (f64::from(a.prompt_tokens), f64::from(a.output_tokens))).unzip();
    let (mx, my) = (mean(&x), mean(&y));
    let together: f64 = x.iter().zip(&y).map(|(x, y)| (x - mx) * (y - my)).sum::<f64>() / x.len() as f64;
    let correlation = together / (mx * cv(&x) * my * cv(&y));
    assert!(correlation.abs() < 0.03, "{correlation}");
}
