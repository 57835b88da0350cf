//! The BERT encoder of all-MiniLM-L6-v2, with attention heads and feed-forward columns sharded.
//!
//! Embeddings, layer norms and pooling are computed by every rank; they are cheap and need no
//! communication. Each layer reduces twice: after attention's output projection and after the
//! second feed-forward matmul.

use candle_core::{D, Result, Tensor};
use candle_nn::{Embedding, LayerNorm, Linear, Module, VarBuilder, embedding, layer_norm, ops};
use serde::Deserialize;

use crate::shard::{RowParallel, Shard, column_parallel};

/// What `config.json` says of the shape.
#[derive(Deserialize)]
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

/// Token ids, `[sentences, tokens]` in u32, and which of them are no padding, in f32.
pub struct Batch {
    pub ids: Tensor,
    pub mask: Tensor,
}

/// From tokens to vectors. Replicated.
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

    /// `[sentences, tokens, hidden]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let tokens = ids.dim(1)? as u32;
        let positions = self.positions.forward(&Tensor::arange(0, tokens, ids.device())?)?;
        let types = self.types.forward(&ids.zeros_like()?)?;
        let sum = (self.words.forward(ids)? + types)?.broadcast_add(&positions)?;
        self.norm.forward(&sum)
    }
}

/// The layers, sharded.
pub struct Encoder<'a> {
    layers: Vec<Layer<'a>>,
}

impl<'a> Encoder<'a> {
    pub fn load(config: &Config, weights: VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        let layer = |i| Layer::load(config, weights.pp("layer").pp(i), shard);
        let layers = (0..config.num_hidden_layers).map(layer).collect::<anyhow::Result<_>>()?;
        Ok(Encoder { layers })
    }

    /// One vector of unit length a sentence, `[sentences, hidden]`: the mean over its tokens.
    pub fn embed(&self, embeddings: &Tensor, mask: &Tensor) -> Result<Tensor> {
        // Added to attention scores before the softmax: nothing for a token, far below any score
        // for padding.
        let bias = mask.affine(1e9, -1e9)?.unsqueeze(1)?.unsqueeze(1)?;
        let hidden =
            self.layers.iter().try_fold(embeddings.clone(), |x, layer| layer.forward(&x, &bias))?;

        let mask = mask.unsqueeze(2)?;
        let mean = hidden.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?;
        mean.broadcast_div(&mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
    }
}

struct Layer<'a> {
    attention: Attention<'a>,
    attention_norm: LayerNorm,
    feed_forward: FeedForward<'a>,
    feed_forward_norm: LayerNorm,
}

impl<'a> Layer<'a> {
    fn load(config: &Config, weights: VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        Ok(Layer {
            attention: Attention::load(config, weights.pp("attention"), shard)?,
            attention_norm: norm(config, &weights.pp("attention.output"))?,
            feed_forward: FeedForward::load(config, &weights, shard)?,
            feed_forward_norm: norm(config, &weights.pp("output"))?,
        })
    }

    fn forward(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let x = self.attention_norm.forward(&(x + self.attention.forward(x, bias)?)?)?;
        self.feed_forward_norm.forward(&(&x + self.feed_forward.forward(&x)?)?)
    }
}

/// Some heads of multi-head attention, and the projection that sums over all of them.
struct Attention<'a> {
    heads: usize,
    head_size: usize,
    query: Linear,
    key: Linear,
    value: Linear,
    output: RowParallel<'a>,
}

impl<'a> Attention<'a> {
    fn load(config: &Config, weights: VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        let hidden = config.hidden_size;
        let head_size = hidden / config.num_attention_heads;
        let heads = shard.range(config.num_attention_heads, "attention heads")?;
        let columns = heads.start * head_size..heads.end * head_size;
        let projection =
            |name| column_parallel((hidden, hidden), &columns, weights.pp("self").pp(name));
        Ok(Attention {
            heads: heads.len(),
            head_size,
            query: projection("query")?,
            key: projection("key")?,
            value: projection("value")?,
            output: RowParallel::load(
                (hidden, hidden),
                &columns,
                weights.pp("output.dense"),
                shard,
            )?,
        })
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
struct FeedForward<'a> {
    up: Linear,
    down: RowParallel<'a>,
}

impl<'a> FeedForward<'a> {
    fn load(config: &Config, weights: &VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let columns = shard.range(inner, "feed-forward columns")?;
        let up = column_parallel((hidden, inner), &columns, weights.pp("intermediate.dense"))?;
        let down = RowParallel::load((inner, hidden), &columns, weights.pp("output.dense"), shard)?;
        Ok(FeedForward { up, down })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.gelu_erf()?)
    }
}

fn norm(config: &Config, weights: &VarBuilder) -> Result<LayerNorm> {
    layer_norm(config.hidden_size, config.layer_norm_eps, weights.pp("LayerNorm"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::hash::{DefaultHasher, Hash, Hasher};

    use candle_core::{DType, Device, Shape};
    use candle_nn::Init;
    use candle_nn::var_builder::SimpleBackend;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use symmem::launch::threads;
    use symmem::prelude::Group;

    use super::*;
    use crate::difference::Difference;
    use crate::shard::AllReduce;

    const CONFIG: Config = Config {
        hidden_size: 20,
        intermediate_size: 33,
        num_attention_heads: 5,
        num_hidden_layers: 3,
        vocab_size: 50,
        max_position_embeddings: 16,
        type_vocab_size: 2,
        layer_norm_eps: 1e-12,
    };

    /// Weights for any name, the same for every rank.
    struct Random;

    impl SimpleBackend for Random {
        fn get(
            &self,
            shape: Shape,
            name: &str,
            _: Init,
            dtype: DType,
            device: &Device,
        ) -> Result<Tensor> {
            let mut seed = DefaultHasher::new();
            name.hash(&mut seed);
            let mut random = StdRng::seed_from_u64(seed.finish());
            let data = (0..shape.elem_count()).map(|_| random.random_range(-1f32..1.0)).collect();
            Tensor::from_vec::<_, f32>(data, shape, device)?.to_dtype(dtype)
        }

        fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
            Err(candle_core::Error::CannotFindTensor { path: name.to_owned() })
        }

        fn contains_tensor(&self, _: &str) -> bool {
            true
        }
    }

    type Rows = Vec<Vec<f32>>;

    /// Two sentences, one of them padded, by this rank's shard and by the whole model.
    fn embed(group: &Group) -> anyhow::Result<(Rows, Rows)> {
        let device = Device::Cpu;
        let ids = Tensor::new(&[[7u32, 49, 0, 3], [1, 30, 0, 0]], &device)?;
        let mask = Tensor::new(&[[1f32, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], &device)?;
        let weights = VarBuilder::from_backend(Box::new(Random), DType::F32, device);
        let input = Embeddings::load(&CONFIG, weights.pp("embeddings"))?.forward(&ids)?;
        let all_reduce = AllReduce::of_shape(group, input.dims())?;
        let embed = |shard| -> anyhow::Result<Rows> {
            let encoder = Encoder::load(&CONFIG, weights.pp("encoder"), shard)?;
            Ok(encoder.embed(&input, &mask)?.to_vec2()?)
        };
        Ok((embed(Shard::of(&all_reduce))?, embed(Shard::whole())?))
    }

    #[test]
    fn shards_compute_what_the_whole_computes() {
        for ranks in 1..=CONFIG.num_attention_heads {
            let all = threads(ranks, |group| embed(&group).unwrap()).unwrap();
            for (rank, (sharded, whole)) in all.iter().enumerate() {
                Difference::largest(whole, sharded).unwrap().check().unwrap();
                assert_eq!(sharded, &all[0].0, "rank {rank} of {ranks} has other bits than rank 0");
            }
        }
    }

    #[test]
    fn more_ranks_than_heads_is_an_error_on_every_rank() {
        for ended in threads(6, |group| embed(&group)).unwrap() {
            let error = ended.unwrap_err().to_string();
            assert_eq!(error, "5 attention heads cannot be split over 6 ranks");
        }
    }

    #[test]
    fn padding_does_not_matter() {
        let embed = |ids: &[u32], mask: &[f32]| -> Rows {
            let shape = (1, ids.len());
            let ids = Tensor::from_slice(ids, shape, &Device::Cpu).unwrap();
            let mask = Tensor::from_slice(mask, shape, &Device::Cpu).unwrap();
            let weights = VarBuilder::from_backend(Box::new(Random), DType::F32, Device::Cpu);
            let embeddings = Embeddings::load(&CONFIG, weights.pp("embeddings")).unwrap();
            let encoder = Encoder::load(&CONFIG, weights.pp("encoder"), Shard::whole()).unwrap();
            let input = embeddings.forward(&ids).unwrap();
            encoder.embed(&input, &mask).unwrap().to_vec2().unwrap()
        };
        let bare = embed(&[7, 49, 3], &[1.0; 3]);
        let padded = embed(&[7, 49, 3, 0, 0], &[1.0, 1.0, 1.0, 0.0, 0.0]);
        Difference::largest(&bare, &padded).unwrap().check().unwrap();
    }
}
