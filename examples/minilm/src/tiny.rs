//! A small encoder with random weights: for tests, which need no model then.

use std::hash::{DefaultHasher, Hash, Hasher};

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::Config;

pub const CONFIG: Config = Config {
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
#[must_use]
pub fn weights() -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Random), DType::F32, Device::Cpu)
}

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
        Err(Error::CannotFindTensor { path: name.to_owned() })
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
