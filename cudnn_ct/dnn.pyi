from cudnn_ct_dnn import (
    GpuDnnBatchNorm as GpuDnnBatchNorm,
)
from cudnn_ct_dnn import (
    GpuDnnBatchNormGrad as GpuDnnBatchNormGrad,
)
from cudnn_ct_dnn import (
    GpuDnnBatchNormInference as GpuDnnBatchNormInference,
)
from cudnn_ct_dnn import (
    GpuDnnConv as GpuDnnConv,
)
from cudnn_ct_dnn import (
    GpuDnnConv3d as GpuDnnConv3d,
)
from cudnn_ct_dnn import (
    GpuDnnConv3dGradI as GpuDnnConv3dGradI,
)
from cudnn_ct_dnn import (
    GpuDnnConv3dGradW as GpuDnnConv3dGradW,
)
from cudnn_ct_dnn import (
    GpuDnnConvDesc as GpuDnnConvDesc,
)
from cudnn_ct_dnn import (
    GpuDnnConvGradI as GpuDnnConvGradI,
)
from cudnn_ct_dnn import (
    GpuDnnConvGradW as GpuDnnConvGradW,
)
from cudnn_ct_dnn import (
    GpuDnnDropoutOp as GpuDnnDropoutOp,
)
from cudnn_ct_dnn import (
    GpuDnnPool as GpuDnnPool,
)
from cudnn_ct_dnn import (
    GpuDnnPoolDesc as GpuDnnPoolDesc,
)
from cudnn_ct_dnn import (
    GpuDnnPoolGrad as GpuDnnPoolGrad,
)
from cudnn_ct_dnn import (
    GpuDnnReduction as GpuDnnReduction,
)
from cudnn_ct_dnn import (
    GpuDnnRNNGradInputs as GpuDnnRNNGradInputs,
)
from cudnn_ct_dnn import (
    GpuDnnRNNGradWeights as GpuDnnRNNGradWeights,
)
from cudnn_ct_dnn import (
    GpuDnnRNNOp as GpuDnnRNNOp,
)
from cudnn_ct_dnn import (
    GpuDnnSoftmax as GpuDnnSoftmax,
)
from cudnn_ct_dnn import (
    GpuDnnSoftmaxGrad as GpuDnnSoftmaxGrad,
)
from cudnn_ct_dnn import (
    GpuDnnTransformerGradI as GpuDnnTransformerGradI,
)
from cudnn_ct_dnn import (
    GpuDnnTransformerGradT as GpuDnnTransformerGradT,
)
from cudnn_ct_dnn import (
    GpuDnnTransformerGrid as GpuDnnTransformerGrid,
)
from cudnn_ct_dnn import (
    GpuDnnTransformerSampler as GpuDnnTransformerSampler,
)
from cudnn_ct_dnn import (
    RNNBlock as RNNBlock,
)
from cudnn_ct_dnn import (
    dnn_available as dnn_available,
)
from cudnn_ct_dnn import (
    dnn_batch_normalization_test as dnn_batch_normalization_test,
)
from cudnn_ct_dnn import (
    dnn_batch_normalization_train as dnn_batch_normalization_train,
)
from cudnn_ct_dnn import (
    dnn_conv as dnn_conv,
)
from cudnn_ct_dnn import (
    dnn_conv3d as dnn_conv3d,
)
from cudnn_ct_dnn import (
    dnn_gradinput as dnn_gradinput,
)
from cudnn_ct_dnn import (
    dnn_gradinput3d as dnn_gradinput3d,
)
from cudnn_ct_dnn import (
    dnn_gradweight as dnn_gradweight,
)
from cudnn_ct_dnn import (
    dnn_gradweight3d as dnn_gradweight3d,
)
from cudnn_ct_dnn import (
    dnn_pool as dnn_pool,
)
from cudnn_ct_dnn import (
    dnn_present as dnn_present,
)
from cudnn_ct_dnn import (
    dnn_spatialtf as dnn_spatialtf,
)
from cudnn_ct_dnn import (
    dropout as dropout,
)
from cudnn_ct_dnn import (
    version as version,
)
