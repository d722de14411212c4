//! Error bodies in OpenAI's form.

use serde_json::value::Value;

/// Builds `{"error":{"message":…,"type":…,"param":…,"code":…}}`, with the field order and null `param` that vLLM
/// and OpenAI use. `code` is the HTTP status.
pub fn body(message: &str, kind: &str, param: Option<&str>, code: u16) -> Vec<u8> {
    let string = |s: &str| Value::from(s).to_string();
    format!(
        r#"{{"error":{{"message":{},"type":{},"param":{},"code":{code}}}}}"#,
        string(message),
        string(kind),
        param.map_or_else(|| "null".to_owned(), string),
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_form() {
        assert_eq!(
            String::from_utf8(body(
                "The model `\"x\"` does not exist.\n",
                "NotFoundError",
                Some("model"),
                404
            ))
            .unwrap(),
            r#"{"error":{"message":"The model `\"x\"` does not exist.\n","type":"NotFoundError","param":"model","code":404}}"#
        );
        assert_eq!(
            body("m", "t", None, 429),
            br#"{"error":{"message":"m","type":"t","param":null,"code":429}}"#
        );
    }
}
