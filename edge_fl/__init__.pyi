from broker.api import serve as serve
from device_sim.simulation.api import simulate as simulate
from edge_fl.agent.device import Device as Device
from edge_fl.compressors.base import Compressor as Compressor
from edge_fl.core.bundle import Bundle as Bundle
from edge_fl.methods.base import Method as Method
from edge_fl.metrics.base import Metric as Metric
from edge_fl.recipes.named import AFD as AFD
from edge_fl.recipes.named import DGC as DGC
from edge_fl.recipes.named import EFD as EFD
from edge_fl.recipes.named import STC as STC
from edge_fl.recipes.named import TCS as TCS
from edge_fl.recipes.named import FedAvg as FedAvg
from edge_fl.recipes.named import FedBIAD as FedBIAD
from edge_fl.recipes.named import FedDrop as FedDrop
from edge_fl.recipes.named import FedMP as FedMP
from edge_fl.recipes.named import FedPAQ as FedPAQ
from edge_fl.recipes.named import FjORD as FjORD
from edge_fl.recipes.named import Fractional as Fractional
from edge_fl.recipes.named import HeteroFL as HeteroFL
from edge_fl.recipes.named import RandK as RandK
from edge_fl.recipes.named import SignSGD as SignSGD
from edge_fl.recipes.named import TopK as TopK
from edge_fl.recipes.named import VarDrop as VarDrop
from edge_fl.runs.run import Run as Run
from exporter.api import export as export

__version__: str
