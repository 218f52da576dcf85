"""ms-swift: a callback by name.

swift sft --external_plugins examples/balance_with_ms_swift.py --callbacks balance ...
"""

from equipoise.integrations.ms_swift import register_callback

register_callback("balance", "curvature")
