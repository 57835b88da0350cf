//! The BERT encoder of all-MiniLM-L6-v2, in parts.

use std::ops::Range;

use candle_core::{D, Device, Result, Tensor};
use candle_nn::{
    Embedding, LayerNorm, Linear, Module, VarBuilder, embedding, layer_norm, linear, ops,
};
use serde::Deserialize;

/// What `config.json` says of the shape.
#[derive(Debug, Deserialize)]
pub struct Config {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_attention_heads: usize,
    pub num_hidden_layers: usize,
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub layer_norm_eps: f64,
}

impl Config {
    /// Elements of a head.
    #[must_use]
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }
}

/// Token ids, `[sentences, tokens]` in u32, and which of them are no padding, in f32.
#[derive(Debug)]
pub struct Batch {
    pub ids: Tensor,
    pub mask: Tensor,
}

/// The same as vectors, `[sentences, tokens, hidden]`, and which of them are no padding.
#[derive(Debug)]
pub struct Hidden {
    pub x: Tensor,
    pub mask: Tensor,
}

/// From tokens to vectors.
#[derive(Debug)]
pub struct Embeddings {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
}

impl Embeddings {
    pub fn load(config: &Config, weights: VarBuilder) -> Result<Self> {
        let table = |rows, name| embedding(rows, config.hidden_size, weights.pp(name));
        Ok(Embeddings {
            words: table(config.vocab_size, "word_embeddings")?,
            positions: table(config.max_position_embeddings, "position_embeddings")?,
            types: table(config.type_vocab_size, "token_type_embeddings")?,
            norm: norm(config, &weights)?,
        })
    }

    pub fn forward(&self, batch: &Batch) -> Result<Hidden> {
        let ids = &batch.ids;
        let tokens = ids.dim(1)? as u32;
        let positions = self.positions.forward(&Tensor::arange(0, tokens, ids.device())?)?;
        let types = self.types.forward(&ids.zeros_like()?)?;
        let sum = (self.words.forward(ids)? + types)?.broadcast_add(&positions)?;
        Ok(Hidden { x: self.norm.forward(&sum)?, mask: batch.mask.clone() })
    }
}

/// A part of a layer that an example makes its own.
pub type Part<'a> = Box<dyn Module + 'a>;

/// The layers.
#[expect(missing_debug_implementations, reason = "a part need not have any")]
pub struct Encoder<'a> {
    hidden: usize,
    layers: Vec<Layer<'a>>,
}

impl<'a> Encoder<'a> {
    /// With what `parts` makes of a layer's number and weights: its attention, and its feed-forward block,
    /// which is given `[tokens, hidden]`.
    pub fn load(
        config: &Config,
        weights: &VarBuilder,
        parts: impl Fn(usize, &VarBuilder) -> anyhow::Result<(Attention<'a>, Part<'a>)>,
    ) -> anyhow::Result<Self> {
        let layer = |i| {
            let weights = weights.pp("layer").pp(i);
            let (attention, feed_forward) = parts(i, &weights)?;
            Ok(Layer {
                attention,
                attention_norm: norm(config, &weights.pp("attention.output"))?,
                feed_forward,
                feed_forward_norm: norm(config, &weights.pp("output"))?,
            })
        };
        let layers = (0..config.num_hidden_layers).map(layer).collect::<anyhow::Result<_>>()?;
        Ok(Encoder { hidden: config.hidden_size, layers })
    }

    /// All of it on one rank.
    pub fn whole(config: &Config, weights: &VarBuilder) -> anyhow::Result<Self> {
        Self::load(config, weights, |_, weights| {
            let feed_forward = FeedForward::load(config, weights)?;
            Ok((Attention::whole(config, weights)?, Box::new(feed_forward)))
        })
    }

    /// One vector of unit length a sentence, `[sentences, hidden]`, batch after batch: the mean over its
    /// tokens.
    ///
    /// Each batch attends by itself; a feed-forward block gets the tokens of all of them at once.
    pub fn embed(&self, batches: &[Hidden]) -> Result<Tensor> {
        // Added to attention scores before the softmax: nothing for a token, far below any score
        // for padding.
        let bias = |batch: &Hidden| batch.mask.affine(1e9, -1e9)?.unsqueeze(1)?.unsqueeze(1);
        let biases: Vec<_> = batches.iter().map(bias).collect::<Result<_>>()?;
        let mut hidden: Vec<_> = batches.iter().map(|batch| batch.x.clone()).collect();
        for layer in &self.layers {
            for (x, bias) in hidden.iter_mut().zip(&biases) {
                *x = layer.attend(x, bias)?;
            }
            let flat: Vec<_> = hidden.iter().map(|x| x.flatten_to(1)).collect::<Result<_>>()?;
            let flat = layer.feed(&self.cat(&flat)?)?;
            let mut start = 0;
            for x in &mut hidden {
                let count = x.dim(0)? * x.dim(1)?;
                *x = flat.narrow(0, start, count)?.reshape(x.shape())?;
                start += count;
            }
        }
        let pooled = hidden.iter().zip(batches).map(|(x, batch)| {
            let mask = batch.mask.unsqueeze(2)?;
            let mean = x.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?;
            mean.broadcast_div(&mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
        });
        self.cat(&pooled.collect::<Result<Vec<_>>>()?)
    }

    /// One under the other, of which there may be none.
    fn cat(&self, rows: &[Tensor]) -> Result<Tensor> {
        match rows {
            [] => Tensor::zeros((0, self.hidden), candle_core::DType::F32, &Device::Cpu),
            rows => Tensor::cat(rows, 0),
        }
    }
}

struct Layer<'a> {
    attention: Attention<'a>,
    attention_norm: LayerNorm,
    feed_forward: Part<'a>,
    feed_forward_norm: LayerNorm,
}

impl Layer<'_> {
    fn attend(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        self.attention_norm.forward(&(x + self.attention.forward(x, bias)?)?)
    }

    fn feed(&self, x: &Tensor) -> Result<Tensor> {
        self.feed_forward_norm.forward(&(x + self.feed_forward.forward(x)?)?)
    }
}

/// Heads of multi-head attention, and the projection that sums over them.
#[expect(missing_debug_implementations, reason = "a part need not have any")]
pub struct Attention<'a> {
    heads: usize,
    head_size: usize,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Part<'a>,
}

impl<'a> Attention<'a> {
    /// Some heads of a layer, and `output` for what comes out of them.
    pub fn load(
        config: &Config,
        weights: &VarBuilder,
        heads: &Range<usize>,
        output: Part<'a>,
    ) -> Result<Self> {
        let (hidden, head_size) = (config.hidden_size, config.head_size());
        let of_heads = heads.start * head_size..heads.end * head_size;
        let weights = weights.pp("attention.self");
        let projection = |name| columns((hidden, hidden), &of_heads, weights.pp(name));
        Ok(Attention {
            heads: heads.len(),
            head_size,
            query: projection("query")?,
            key: projection("key")?,
            value: projection("value")?,
            output,
        })
    }

    /// All heads of a layer.
    pub fn whole(config: &Config, weights: &VarBuilder) -> Result<Self> {
        let (hidden, heads) = (config.hidden_size, 0..config.num_attention_heads);
        let output = linear(hidden, hidden, weights.pp("attention.output.dense"))?;
        Self::load(config, weights, &heads, Box::new(output))
    }

    fn forward(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let (sentences, tokens, _) = x.dims3()?;
        // [sentences, heads, tokens, head_size]
        let split = |projection: &Linear| {
            projection
                .forward(x)?
                .reshape((sentences, tokens, self.heads, self.head_size))?
                .transpose(1, 2)?
                .contiguous()
        };
        let query = (split(&self.query)? / (self.head_size as f64).sqrt())?;
        let scores = query.matmul(&split(&self.key)?.t()?)?.broadcast_add(bias)?;
        let context = ops::softmax_last_dim(&scores)?.matmul(&split(&self.value)?)?;
        self.output.forward(&context.transpose(1, 2)?.flatten_from(2)?)
    }
}

/// Two matmuls with an activation between.
struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn load(config: &Config, weights: &VarBuilder) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let up = linear(hidden, inner, weights.pp("intermediate.dense"))?;
        let down = linear(inner, hidden, weights.pp("output.dense"))?;
        Ok(FeedForward { up, down })
    }
}

impl Module for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.gelu_erf()?)
    }
}

/// Some columns of `x W^T + b`, copied, so that the rest of the weights need not stay in memory.
///
/// A checkpoint stores W with one row an output, so columns of the result are rows of W.
pub fn columns(
    (inputs, outputs): (usize, usize),
    columns: &Range<usize>,
    weights: VarBuilder,
) -> Result<Linear> {
    let take = |all: Tensor| all.narrow(0, columns.start, columns.len())?.force_contiguous();
    let weight = take(weights.get((outputs, inputs), "weight")?)?;
    let bias = take(weights.get(outputs, "bias")?)?;
    Ok(Linear::new(weight, Some(bias)))
}

fn norm(config: &Config, weights: &VarBuilder) -> Result<LayerNorm> {
    layer_norm(config.hidden_size, config.layer_norm_eps, weights.pp("LayerNorm"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::difference::Difference;
    use crate::tiny;

    fn batch(ids: &[u32], mask: &[f32]) -> Hidden {
        let embeddings = Embeddings::load(&tiny::CONFIG, tiny::weights().pp("embeddings")).unwrap();
        let shape = (1, ids.len());
        let ids = Tensor::from_slice(ids, shape, &Device::Cpu).unwrap();
        let mask = Tensor::from_slice(mask, shape, &Device::Cpu).unwrap();
        embeddings.forward(&Batch { ids, mask }).unwrap()
    }

    fn embed(batches: &[Hidden]) -> Vec<Vec<f32>> {
        let encoder = Encoder::whole(&tiny::CONFIG, &tiny::weights().pp("encoder")).unwrap();
        encoder.embed(batches).unwrap().to_vec2().unwrap()
    }

    #[test]
    fn padding_does_not_matter() {
        let bare = embed(&[batch(&[7, 49, 3], &[1.0; 3])]);
        let padded = embed(&[batch(&[7, 49, 3, 0, 0], &[1.0, 1.0, 1.0, 0.0, 0.0])]);
        Difference::largest(&bare, &padded).unwrap().check().unwrap();
    }

    #[test]
    fn batches_do_not_meet() {
        let sentences = || [batch(&[7, 49, 3], &[1.0; 3]), batch(&[1, 30], &[1.0; 2])];
        let apart: Vec<_> = sentences().into_iter().flat_map(|batch| embed(&[batch])).collect();
        Difference::largest(&apart, &embed(&sentences())).unwrap().check().unwrap();
        assert_eq!(embed(&[]), Vec::<Vec<f32>>::new());
    }
}
