# At installation: what is made then. The program prints its man pages and completions, so they tell what this build has.
cmake_policy(VERSION 3.25)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
list(REMOVE_ITEM INGOT_RUN "")
file(REMOVE_RECURSE "${INGOT_MADE}")
file(MAKE_DIRECTORY "${INGOT_MADE}/man")

# ingot_make(FILE COMMAND...): what a command prints
function(ingot_make file)
  execute_process(COMMAND ${ARGN} OUTPUT_FILE "${INGOT_MADE}/${file}" RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}: ${code}; a program for another processor needs CMAKE_CROSSCOMPILING_EMULATOR")
  endif()
endfunction()
function(ingot_put file directory)
  cmake_path(IS_ABSOLUTE directory absolute)
  if(NOT absolute)
    set(directory "${CMAKE_INSTALL_PREFIX}/${directory}")
  endif()
  file(INSTALL DESTINATION "${directory}" TYPE FILE FILES "${INGOT_MADE}/${file}" ${ARGN})
endfunction()

execute_process(COMMAND ${INGOT_RUN} man OUTPUT_VARIABLE pages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" pages "${pages}")
foreach(page ${pages})
  string(REGEX MATCH "[0-9]$" section "${page}")
  ingot_make(man/${page} ${INGOT_RUN} man ${page})
  ingot_make(man/${page}.gz gzip -9nc "${INGOT_MADE}/man/${page}")
  ingot_put(man/${page}.gz "${INGOT_MAN}/man${section}")
endforeach()

ingot_make(completion.bash ${INGOT_RUN} completion bash)
ingot_put(completion.bash "${INGOT_DATA}/bash-completion/completions" RENAME ingot)
ingot_make(completion.zsh ${INGOT_RUN} completion zsh)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr") # Debian's zsh reads this one
  ingot_put(completion.zsh "${INGOT_DATA}/zsh/vendor-completions" RENAME _ingot)
else()
  ingot_put(completion.zsh "${INGOT_DATA}/zsh/site-functions" RENAME _ingot)
endif()
ingot_make(completion.fish ${INGOT_RUN} completion fish)
ingot_put(completion.fish "${INGOT_DATA}/fish/vendor_completions.d" RENAME ingot.fish)

if(INGOT_DEBIAN_VERSION AND CMAKE_INSTALL_PREFIX STREQUAL "/usr") # cpack: what a Debian package has besides
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE "${INGOT_MADE}/changelog.Debian" "${INGOT_PACKAGE} (${INGOT_DEBIAN_VERSION}) unstable; urgency=medium

  * Made of ingot ${INGOT_VERSION}: CHANGELOG.md.

 -- ${INGOT_MAINTAINER}  ${date}
")
  ingot_make(changelog.Debian.gz gzip -9nc "${INGOT_MADE}/changelog.Debian")
  ingot_put(changelog.Debian.gz "${INGOT_DOC}")
  # The program of both kinds of packages is static on purpose (cmake/deps.cmake).
  file(WRITE "${INGOT_MADE}/lintian" "${INGOT_PACKAGE}: embedded-library *\n${INGOT_PACKAGE}: initial-upload-closes-no-bugs *\n${INGOT_PACKAGE}: wrong-name-for-upstream-changelog *\n")
  ingot_put(lintian "${INGOT_DATA}/lintian/overrides" RENAME ${INGOT_PACKAGE})
endif()

if(INGOT_STATIC)
  cmake_path(ABSOLUTE_PATH INGOT_BIN BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE bin)
  execute_process(COMMAND "${INGOT_SOURCE}/packaging/sbom.sh" "${INGOT_MADE}" ${INGOT_VERSION} "$ENV{DESTDIR}${bin}/ingot" ${INGOT_SBOM_ARCHIVES}
    COMMAND_ERROR_IS_FATAL ANY)
  ingot_put(ingot.spdx.json "${INGOT_DOC}")
  ingot_put(copyright "${INGOT_DOC}")
endif()
