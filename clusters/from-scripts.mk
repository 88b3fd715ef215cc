# The targets of the earlier scripts, one mlenv command each; docs/project/from-scripts.md lists them all.
# CLUSTER is the name of a file in clusters/ without .yaml. MLENV_FLAGS are any other flags.
MLENV := bin/mlenv
PROGRAM := $(filter bin/mlenv,$(MLENV))
CLUSTER_FILE = $(if $(CLUSTER),clusters/$(CLUSTER).yaml)
IN = $(if $(NAMESPACE),--namespace=$(NAMESPACE)) $(MLENV_FLAGS)
AT = $(if $(CLUSTER),--cluster-file=$(CLUSTER_FILE)) $(IN)
SIZE = $(if $(MODE),--mode=$(MODE)) $(if $(NODES),--nodes=$(NODES))

# With CLUSTER, make build builds the training image there, as the scripts' did. Without it the Makefile's target compiles the project.
ifneq ($(CLUSTER),)
.PHONY: build
build: $(PROGRAM) ## with CLUSTER=: build the training image on the cluster instead (NAMESPACE=)
	$(MLENV) build $(AT)
endif

.PHONY: deploy-cluster
deploy-cluster: $(PROGRAM) ## create an environment for development (CLUSTER= MODE= NODES= NAMESPACE=)
	$(MLENV) up $(AT) $(SIZE)

.PHONY: deploy-multi-node-rdma
deploy-multi-node-rdma: $(PROGRAM) ## the same over RDMA
	$(MLENV) up --mode=rdma $(AT) $(if $(NODES),--nodes=$(NODES))

.PHONY: deploy-multi-node-tcp
deploy-multi-node-tcp: $(PROGRAM) ## the same over TCP
	$(MLENV) up --mode=tcp $(AT) $(if $(NODES),--nodes=$(NODES))

.PHONY: deploy
deploy: $(PROGRAM) ## create an environment of one node, with VS Code, Jupyter and TensorBoard
	$(MLENV) up --nodes=1 --services=all $(AT)

# The scripts' target clean did the same. make clean deletes build output instead, and no environment in which somebody works.
.PHONY: clean-cluster clean-multi-node
clean-cluster clean-multi-node: ## release the environment; claims stay
	$(MLENV) down $(AT)

.PHONY: status-cluster status-multi-node status
status-cluster status-multi-node status: ## show the state of the environment, and what is wrong with it
	$(MLENV) doctor $(AT)

.PHONY: sync-multi-node sync-once
sync-multi-node sync-once: ## send a folder to all nodes (LOCAL_DIR=.)
	$(MLENV) sync $(AT) $(LOCAL_DIR)

.PHONY: sync-code
sync-code: ## the same, and again whenever something in the folder changes
	$(MLENV) sync --watch $(AT) $(LOCAL_DIR)

.PHONY: shell-multi-node shell
shell-multi-node shell: ## open a shell on a node (NODE=0)
	$(MLENV) shell $(AT) $(NODE)

.PHONY: gpu-info
gpu-info: ## show the GPUs of a node, and how they are connected (NODE=0)
	$(MLENV) shell $(AT) $(NODE) -- nvidia-smi
	$(MLENV) shell $(AT) $(NODE) -- nvidia-smi topo -m

# FILE is the scripts' name of SCRIPT.
TRAINED = $(or $(SCRIPT),$(FILE))
.PHONY: dev-session
dev-session: ## sync and train, again after every change (SCRIPT=train.py); without SCRIPT only sync, and forward the debugger's port
ifneq ($(TRAINED),)
	$(MLENV) dev $(AT) $(if $(LOCAL_DIR),--dir=$(LOCAL_DIR)) $(TRAINED)
else
	@$(MAKE) --no-print-directory -j2 sync-code port-forward
endif

.PHONY: vscode jupyter
vscode jupyter: ## open VS Code or Jupyter in the browser, and start it before if it does not run
	$(MLENV) open $(AT) $@

.PHONY: port-forward
port-forward: ## forward the debugger's port, or another one (DEBUG_PORT=5678)
	$(MLENV) port-forward $(AT) $(DEBUG_PORT)

.PHONY: list-clusters
list-clusters: ## describe each cluster file
	$(MLENV) validate clusters/*.yaml

# In a fresh clone the first target compiles the program.
clean-cluster clean-multi-node status-cluster status-multi-node status sync-multi-node sync-once sync-code shell-multi-node shell gpu-info \
dev-session vscode jupyter port-forward list-clusters: $(if $(wildcard bin/mlenv),,$(PROGRAM))
