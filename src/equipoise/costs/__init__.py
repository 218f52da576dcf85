"""What a step takes on a cluster, from first principles, and what uneven loads add to it.

devices     what each kind of device has: peak, memory, links
cluster     so many of them, by name ("gb200-64") or by figures
workload    a model as the clock sees it: tokens, FLOPs, bytes; published ones by name
fullest     from the imbalance of experts to the load of the fullest device
step_time   the time of a step as a function of the fullest device's load
"""
