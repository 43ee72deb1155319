"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_clinic.card import (
    kit_cards as kit_cards,
    norm_card as norm_card,
)
from mambanorm_clinic.card_page import (
    NormCard as NormCard,
    cards_html as cards_html,
)
from mambanorm_clinic.checkpoints import (
    load_model as load_model,
    read_checkpoint as read_checkpoint,
)
from mambanorm_clinic.diagnosis import (
    Diagnosis as Diagnosis,
    diagnose as diagnose,
)
from mambanorm_clinic.figures import (
    fig_clinic as fig_clinic,
    fig_cures as fig_cures,
    fig_failure as fig_failure,
)
from mambanorm_clinic.mamba_checkpoints import (
    load_mamba_checkpoint as load_mamba_checkpoint,
)
from mambanorm_clinic.model_check import check_model as check_model
from mambanorm_clinic.statistics import update_statistics as update_statistics
from mambanorm_clinic.surgery import (
    Surgery as Surgery,
    insert_norm as insert_norm,
)
from mambanorm_clinic.symptoms import (
    Symptom as Symptom,
    Symptoms as Symptoms,
)
from mambanorm_clinic.watching import (
    NonFinite as NonFinite,
    Report as Report,
    Watched as Watched,
    trainer_callback as trainer_callback,
    watch as watch,
)
