"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_clinic.card import (
    kit_cards as kit_cards,
)
from mambanorm_clinic.card import (
    norm_card as norm_card,
)
from mambanorm_clinic.card_page import (
    NormCard as NormCard,
)
from mambanorm_clinic.card_page import (
    cards_html as cards_html,
)
from mambanorm_clinic.checkpoints import (
    load_model as load_model,
)
from mambanorm_clinic.checkpoints import (
    read_checkpoint as read_checkpoint,
)
from mambanorm_clinic.diagnosis import (
    Diagnosis as Diagnosis,
)
from mambanorm_clinic.diagnosis import (
    NonFinite as NonFinite,
)
from mambanorm_clinic.diagnosis import (
    Report as Report,
)
from mambanorm_clinic.diagnosis import (
    diagnose as diagnose,
)
from mambanorm_clinic.figures import fig_clinic as fig_clinic
from mambanorm_clinic.figures import fig_cures as fig_cures
from mambanorm_clinic.figures import fig_failure as fig_failure
from mambanorm_clinic.mamba_checkpoints import (
    load_mamba_checkpoint as load_mamba_checkpoint,
)
from mambanorm_clinic.model_check import check_model as check_model
from mambanorm_clinic.surgery import (
    Surgery as Surgery,
)
from mambanorm_clinic.surgery import (
    insert_norm as insert_norm,
)
from mambanorm_clinic.symptoms import (
    Symptom as Symptom,
)
from mambanorm_clinic.symptoms import (
    Symptoms as Symptoms,
)
from mambanorm_clinic.watching import (
    Watched as Watched,
)
from mambanorm_clinic.watching import (
    trainer_callback as trainer_callback,
)
from mambanorm_clinic.watching import (
    watch as watch,
)
