use super::*;

fn vllm() -> EngineMap {
    EngineMap::built_in("vllm").unwrap()
}

#[test]
fn specs_are_read_and_shown() {
    for (text, shown) in [
        ("a:b", "a:b"),
        (" a { x = 1 , y=\"two words\" } ", "a{x=1,y=two words}"),
        ("a{}", "a"),
        ("a{x=\"\"}", "a{x=}"),
    ] {
        assert_eq!(Spec::parse(text).unwrap().unwrap().to_string(), shown);
    }
    assert_eq!(Spec::parse("  "), Ok(None));
    for bad in
        ["1a", "a b", "a{x=1", "a}", "a{x}", "a{x=}", "a{1=2}", "a{x:y=1}", "a{x=1,}", "{x=1}", "a{x=\"1}"]
    {
        assert!(Spec::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(
        Spec::parse("a{x=1,y}").unwrap_err().to_string(),
        "`y` in the metric selector `a{x=1,y}` is not `label=value`"
    );
}

#[test]
fn vllm_new_names() {
    let text = br#"# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 26.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 26.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.9763779527559056
vllm:lora_requests_info{max_lora="2",running_lora_adapters="a1",waiting_lora_adapters="a1"} 1.7961587467206223e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="a1, a0",waiting_lora_adapters=""} 1.7961587478887374e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters="a9"} 1.0e+09
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="128",num_cpu_blocks="None"} 1.0
"#;
    let scrape = extract(text, &vllm());
    assert_eq!(
        scrape,
        Scrape {
            waiting: Reading::Value(26.0),
            running: Reading::Value(4.0),
            kv: Reading::Value(0.976_377_952_755_905_6),
            block_size: Some(32),
            num_blocks: Some(128),
            lora: Some(Lora {
                running: vec!["a1".to_owned(), "a0".to_owned()],
                waiting: Vec::new(),
                max: Some(2)
            }),
            ..Scrape::default()
        }
    );
    assert!(scrape.any());
}

#[test]
fn vllm_old_kv_name_and_missing_families() {
    let scrape = extract(b"vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n", &vllm());
    assert_eq!(scrape.kv, Reading::Value(0.25));
    assert_eq!((scrape.waiting, scrape.running), (Reading::Missing, Reading::Missing));
    assert_eq!(
        scrape.missing,
        ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:cache_config_info"]
    );
    assert_eq!(scrape.lora, None);
    // The new name wins when both are there, in either order.
    let both = b"vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5\n";
    assert_eq!(extract(both, &vllm()).kv, Reading::Value(0.5));
    assert!(!extract(b"", &vllm()).any());
}

#[test]
fn what_is_not_a_number_is_missing() {
    let scrape = extract(b"vllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting +Inf\n", &vllm());
    assert_eq!((scrape.kv, scrape.waiting), (Reading::Missing, Reading::Missing));
    assert_eq!(scrape.missing[0], "vllm:num_requests_waiting");
}

#[test]
fn newest_series_else_the_first() {
    let name = "vllm:num_requests_waiting";
    let untimed = format!("{name}{{engine=\"0\"}} 1\n{name}{{engine=\"1\"}} 2\n");
    let scrape = extract(untimed.as_bytes(), &vllm());
    assert_eq!(scrape.waiting, Reading::Value(1.0));
    assert_eq!(scrape.several, [name]);
    let timed = format!("{name}{{a=\"0\"}} 1 100\n{name}{{a=\"1\"}} 2 300\n{name}{{a=\"2\"}} 3 200\n");
    let scrape = extract(timed.as_bytes(), &vllm());
    assert_eq!(scrape.waiting, Reading::Value(2.0));
    assert!(scrape.several.is_empty());
}

#[test]
fn other_engines() {
    for name in BUILT_IN_ENGINES {
        assert_eq!(EngineMap::built_in(name).unwrap().name, name);
    }
    assert_eq!(EngineMap::built_in("llama.cpp"), None);

    let text = b"sglang:num_queue_reqs 3\nsglang:num_running_reqs 7\nsglang:token_usage 0.5\n\
        sglang:cache_config_info{page_size=\"1\",num_pages=\"400\"} 1\n";
    let scrape = extract(text, &EngineMap::built_in("sglang").unwrap());
    assert_eq!((scrape.block_size, scrape.num_blocks), (Some(1), Some(400)));
    assert!(scrape.missing.is_empty());

    let text = b"nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\"} 3\n\
        nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\"} 5\n\
        nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.125\n\
        nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\n\
        nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 900\n";
    let scrape = extract(text, &EngineMap::built_in("triton-tensorrt-llm").unwrap());
    assert_eq!(
        (scrape.waiting, scrape.running, scrape.kv),
        (Reading::Value(3.0), Reading::Value(5.0), Reading::Value(0.125))
    );
    assert_eq!((scrape.block_size, scrape.num_blocks), (Some(64), Some(900)));

    let scrape = extract(b"nv_inference_exec_count 2\n", &EngineMap::built_in("triton").unwrap());
    assert_eq!(scrape.kv, Reading::Disabled);
    assert_eq!(scrape.missing, ["nv_inference_pending_request_count"]);
}

#[test]
fn custom_metrics() {
    let mut map = vllm();
    map.custom = vec![
        ("k".to_owned(), Spec::parse("mine{a=b}").unwrap().unwrap()),
        ("l".to_owned(), Spec::parse("x").unwrap().unwrap()),
    ];
    let scrape = extract(b"mine{a=\"c\"} 1\nmine{a=\"b\"} 2\n", &map);
    assert_eq!(scrape.custom, [Reading::Value(2.0), Reading::Missing]);
    assert!(scrape.missing.contains(&"x".to_owned()));
}
